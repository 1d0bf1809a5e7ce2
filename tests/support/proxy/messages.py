"""The requests and responses that pass through the proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client, as it is given to the predicate of a rule."""

    method: str
    path: str
    """Path with its query."""
    range: str | None
    """Value of the Range header, such as `bytes=0-511`."""
    number: int
    """Number among all requests to this proxy, from 1."""
    attempt: int
    """Number among the requests with the same method, path and range, from 1."""

    @property
    def span(self) -> tuple[int, int | None] | None:
        """First and last byte of the requested range, with None for the last byte of the object.

        It is the whole object if there is no range, and None for a suffix range (`bytes=-512`).
        """
        if self.range is None:
            return 0, None
        match = _RANGE.fullmatch(self.range)
        return (int(match[1]), int(match[2]) if match[2] else None) if match else None


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response."""

    status: int
    reason: str
    headers: Headers
    body: bytes


def error_response(status: int, code: str, message: str) -> Response:
    """Return an error in the format of an S3 server."""
    body = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    headers = (("Content-Type", "application/xml"), ("Content-Length", str(len(body))))
    return Response(status, code, headers, body)


def with_range(headers: Headers, byte_range: str | None) -> Headers:
    """Return the headers with another Range header, or without any for None."""
    others = tuple((name, value) for name, value in headers if name.lower() != "range")
    return others if byte_range is None else (*others, ("Range", byte_range))
