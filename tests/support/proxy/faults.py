"""What can go wrong with one request, one kind a class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.testing.corrupt import flip_bit
from tests.support.proxy.messages import Answer, Headers, Request, error_answer, with_range

Forward = Callable[[Headers], Answer]
"""Asks the server, with these headers."""

CODES = {400: "ExpiredToken", 403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}


class Line(Protocol):
    """The way back to the client."""

    def head(self, answer: Answer) -> None:
        """Status and headers."""
        ...

    def body(self, data: bytes) -> None:
        """The next bytes of the body, at the proxy's bandwidth."""
        ...

    def wait(self, seconds: float) -> None:
        """Nothing is sent for a while."""
        ...

    def cut(self) -> None:
        """The connection is closed; does not return."""
        ...

    def hang(self) -> None:
        """Nothing is sent until the client gives up; does not return."""
        ...


@dataclass(frozen=True, slots=True)
class Fault:
    """By itself none at all: each kind changes a part of this."""

    def suits(self, request: Request) -> bool:
        """Whether such a request can have this fault."""
        return True

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Answer:
        """What will be answered."""
        return forward(headers)

    def deliver(self, answer: Answer, line: Line) -> None:
        """How it gets to the client."""
        line.head(answer)
        line.body(answer.body)


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """The connection is closed in the middle of the body."""

    after_bytes: int | None = 0
    """Of the body; None: not even the status is sent."""

    def deliver(self, answer: Answer, line: Line) -> None:
        """The first bytes."""
        _begin(answer, line, self.after_bytes)
        line.cut()


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """Nothing more comes, and the connection stays open."""

    after_bytes: int | None = None
    """Of the body; None: not even the status is sent."""

    def deliver(self, answer: Answer, line: Line) -> None:
        """The first bytes."""
        _begin(answer, line, self.after_bytes)
        line.hang()


@dataclass(frozen=True, slots=True)
class Late(Fault):
    """The answer comes whole, but later."""

    seconds: float

    def deliver(self, answer: Answer, line: Line) -> None:
        """After a while."""
        line.wait(self.seconds)
        Fault.deliver(self, answer, line)


@dataclass(frozen=True, slots=True)
class Drip(Fault):
    """The body comes in small pieces with pauses: never silent for long, never done."""

    piece_bytes: int
    pause_s: float

    def deliver(self, answer: Answer, line: Line) -> None:
        """Piece by piece."""
        line.head(answer)
        for start in range(0, len(answer.body), self.piece_bytes):
            line.wait(self.pause_s)
            line.body(answer.body[start : start + self.piece_bytes])


@dataclass(frozen=True, slots=True)
class Flip(Fault):
    """One bit of the object is wrong, in every answer that contains it."""

    at: int
    """Which byte of the object."""

    def suits(self, request: Request) -> bool:
        """Those that ask for the byte."""
        span = request.span
        if request.method != "GET" or span is None:
            return False
        first, last = span
        return first <= self.at and (last is None or self.at <= last)

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Answer:
        """The server's answer, but for that bit; errors stay as they are."""
        answer = forward(headers)
        if answer.status not in (200, 206) or request.span is None:
            return answer
        start = request.span[0] if answer.status == 206 else 0
        return replace(answer, body=flip_bit(answer.body, self.at - start))


@dataclass(frozen=True, slots=True)
class Status(Fault):
    """An error instead of an answer; the server is not asked."""

    status: int
    code: str | None = None
    """S3's word for it; the usual one if not given."""

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Answer:
        """Made by the proxy."""
        return error_answer(self.status, self.code or CODES.get(self.status, "Error"), "injected by the fault proxy")


@dataclass(frozen=True, slots=True)
class WholeObject(Fault):
    """A range is asked for, and the whole object is given, with status 200."""

    def suits(self, request: Request) -> bool:
        """Requests for a range."""
        return request.range is not None

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Answer:
        """As if nobody had said which range."""
        return forward(with_range(headers, None))


@dataclass(frozen=True, slots=True)
class WrongRange(Fault):
    """Another range is given than was asked for, one byte off; status and headers say so."""

    def suits(self, request: Request) -> bool:
        """Requests for a range from here to there."""
        return request.range is not None and request.span is not None

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Answer:
        """One byte earlier, or later where there is none before it."""
        assert request.span is not None
        first, last = request.span
        step = -1 if first else 1
        end = "" if last is None else last + step
        return forward(with_range(headers, f"bytes={first + step}-{end}"))


def _begin(answer: Answer, line: Line, count: int | None) -> None:
    if count is not None:
        line.head(answer)
        line.body(answer.body[:count])
