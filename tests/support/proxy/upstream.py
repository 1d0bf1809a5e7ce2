"""The server behind the proxy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from penstock.errors import SettingError
from tests.support.proxy.messages import Headers, Response, error_response

TIMEOUT_S = 30.0
HOP_BY_HOP = {"connection", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
"""Headers that concern one connection only (RFC 9110, 7.6.1), and Expect, since the proxy itself sends 100 Continue."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The address of the server."""

    host: str
    port: int

    @classmethod
    def at(cls, url: str) -> Upstream:
        """Parse an address such as `http://127.0.0.1:5000`."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
            raise SettingError(f"{url!r} is not the address of a plain HTTP server", advice="Give http://host:port")
        return cls(parts.hostname, parts.port or 80)

    def request(self, method: str, path: str, headers: Headers, body: bytes) -> Response:
        """Send a request and return the complete response, or status 502 if there is none."""
        connection = HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body or None)
            with connection.getresponse() as response:
                data = response.read()
                kept = end_to_end(response.getheaders())
                if method != "HEAD" and response.status not in (204, 304):
                    kept = (*(pair for pair in kept if pair[0].lower() != "content-length"), _content_length(data))
                return Response(response.status, response.reason, kept, data)
        except (OSError, HTTPException) as error:
            return error_response(502, "BadGateway", f"the server behind the proxy: {type(error).__name__}")
        finally:
            connection.close()


def end_to_end(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers that concern the client and the server, without those of one connection."""
    return tuple((name, value) for name, value in headers if name.lower() not in HOP_BY_HOP)


def _content_length(data: bytes) -> tuple[str, str]:
    return "Content-Length", str(len(data))
