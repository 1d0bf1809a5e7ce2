"""The failures that the proxy can inject into the response to one request, one class for each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.testing.corrupt import flip_bit
from tests.support.proxy.messages import Headers, Request, Response, error_response, with_range

Forward = Callable[[Headers], Response]
"""Forwards the request to the server with these headers and returns its response."""

S3_CODES = {400: "ExpiredToken", 403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}
"""The usual error code of S3 by status."""


class ResponseWriter(Protocol):
    """Sends the response to the client."""

    def write_head(self, response: Response) -> None:
        """Send status and headers."""
        ...

    def write_body(self, data: bytes) -> None:
        """Send the next bytes of the body, at the proxy's bandwidth."""
        ...

    def wait(self, seconds: float) -> None:
        """Send nothing for so many seconds."""
        ...

    def cut(self) -> None:
        """Close the connection; does not return."""
        ...

    def hang(self) -> None:
        """Send nothing until the client closes the connection; does not return."""
        ...


@dataclass(frozen=True, slots=True)
class ResponseFault:
    """The base class, which forwards the request and delivers the response; each fault changes a part of that."""

    def applies_to(self, request: Request) -> bool:
        """Return whether such a request can have this fault."""
        return True

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Response:
        """Return the response, from the server or made by the proxy."""
        return forward(headers)

    def deliver(self, response: Response, writer: ResponseWriter) -> None:
        """Send the response to the client."""
        writer.write_head(response)
        writer.write_body(response.body)


@dataclass(frozen=True, slots=True)
class Cut(ResponseFault):
    """The connection is closed in the middle of the body."""

    after_bytes: int | None = 0
    """Bytes of the body that are sent; None: not even the status is sent."""

    def deliver(self, response: Response, writer: ResponseWriter) -> None:
        """Send the first bytes and close the connection."""
        _write_beginning(response, writer, self.after_bytes)
        writer.cut()


@dataclass(frozen=True, slots=True)
class Hang(ResponseFault):
    """The response stops, and the connection stays open."""

    after_bytes: int | None = None
    """Bytes of the body that are sent; None: not even the status is sent."""

    def deliver(self, response: Response, writer: ResponseWriter) -> None:
        """Send the first bytes and wait for the client to give up."""
        _write_beginning(response, writer, self.after_bytes)
        writer.hang()


@dataclass(frozen=True, slots=True)
class Late(ResponseFault):
    """The response is complete, but comes later."""

    seconds: float

    def deliver(self, response: Response, writer: ResponseWriter) -> None:
        """Send the response after the delay."""
        writer.wait(self.seconds)
        ResponseFault.deliver(self, response, writer)


@dataclass(frozen=True, slots=True)
class Drip(ResponseFault):
    """The body comes in small pieces with pauses, so that it takes very long without a long silence."""

    piece_bytes: int
    pause_s: float

    def deliver(self, response: Response, writer: ResponseWriter) -> None:
        """Send the body piece by piece."""
        writer.write_head(response)
        for start in range(0, len(response.body), self.piece_bytes):
            writer.wait(self.pause_s)
            writer.write_body(response.body[start : start + self.piece_bytes])


@dataclass(frozen=True, slots=True)
class Flip(ResponseFault):
    """One bit of the object is wrong, in every response that contains it."""

    at: int
    """Offset of the byte in the object."""

    def applies_to(self, request: Request) -> bool:
        """Return whether the request is for a range with that byte."""
        span = request.span
        if request.method != "GET" or span is None:
            return False
        first, last = span
        return first <= self.at and (last is None or self.at <= last)

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Response:
        """Return the server's response with that bit flipped; errors stay as they are."""
        response = forward(headers)
        if response.status not in (200, 206) or request.span is None:
            return response
        start = request.span[0] if response.status == 206 else 0
        return replace(response, body=flip_bit(response.body, self.at - start))


@dataclass(frozen=True, slots=True)
class Status(ResponseFault):
    """The proxy responds with an error and does not forward the request."""

    status: int
    code: str | None = None
    """Error code of S3; None: the usual one for this status."""

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Response:
        """Return the error."""
        code = self.code or S3_CODES.get(self.status, "Error")
        return error_response(self.status, code, "injected by the fault proxy")


@dataclass(frozen=True, slots=True)
class WholeObject(ResponseFault):
    """The response to a request for a range is the whole object, with status 200."""

    def applies_to(self, request: Request) -> bool:
        """Return whether the request has a range."""
        return request.range is not None

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Response:
        """Forward the request without its range."""
        return forward(with_range(headers, None))


@dataclass(frozen=True, slots=True)
class WrongRange(ResponseFault):
    """The response has a range that is one byte off, with the status and the headers of that range."""

    def applies_to(self, request: Request) -> bool:
        """Return whether the request has a range with a first byte."""
        return request.range is not None and request.span is not None

    def fetch(self, request: Request, headers: Headers, forward: Forward) -> Response:
        """Forward the request with a range one byte earlier, or one byte later if it begins at 0."""
        assert request.span is not None
        first, last = request.span
        step = -1 if first else 1
        end = "" if last is None else last + step
        return forward(with_range(headers, f"bytes={first + step}-{end}"))


def _write_beginning(response: Response, writer: ResponseWriter, body_bytes: int | None) -> None:
    if body_bytes is not None:
        writer.write_head(response)
        writer.write_body(response.body[:body_bytes])
