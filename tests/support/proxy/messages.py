"""A request and its answer, as they pass through the proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, slots=True)
class Request:
    """What a rule's predicate is asked about."""

    method: str
    path: str
    """With its query."""
    range: str | None
    """As it was asked for: `bytes=0-511`."""
    number: int
    """Among all requests to this proxy, from 1."""
    attempt: int
    """How often exactly this (method, path and range) was asked for, this time included."""

    @property
    def span(self) -> tuple[int, int | None] | None:
        """The first byte of the object that is asked for and the last, None for its end; None for a suffix."""
        if self.range is None:
            return 0, None
        found = _RANGE.fullmatch(self.range)
        return (int(found[1]), int(found[2]) if found[2] else None) if found else None


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes back, the whole of it."""

    status: int
    reason: str
    headers: Headers
    body: bytes


def error_answer(status: int, code: str, message: str) -> Answer:
    """As an S3 server words its errors."""
    body = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    headers = (("Content-Type", "application/xml"), ("Content-Length", str(len(body))))
    return Answer(status, code, headers, body)


def with_range(headers: Headers, value: str | None) -> Headers:
    """The same with another range asked for, or with none."""
    others = tuple((name, was) for name, was in headers if name.lower() != "range")
    return others if value is None else (*others, ("Range", value))
