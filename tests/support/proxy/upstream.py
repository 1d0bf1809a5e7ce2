"""The server behind the proxy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from penstock.errors import SettingError
from tests.support.proxy.messages import Answer, Headers, error_answer

TIMEOUT_S = 30.0
HOP_BY_HOP = {"connection", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
"""Between two neighbours only (RFC 9110, 7.6.1), and a wish for 100 Continue, which the proxy grants itself."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where it listens."""

    host: str
    port: int

    @classmethod
    def at(cls, url: str) -> Upstream:
        """From `http://127.0.0.1:5000`."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
            raise SettingError(f"{url!r} is not the address of a plain HTTP server", advice="Give http://host:port")
        return cls(parts.hostname, parts.port or 80)

    def ask(self, method: str, path: str, headers: Headers, body: bytes) -> Answer:
        """Its whole answer; 502 where there is none."""
        connection = HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body or None)
            with connection.getresponse() as response:
                data = response.read()
                known = end_to_end(response.getheaders())
                if method != "HEAD" and response.status not in (204, 304):
                    known = (*(pair for pair in known if pair[0].lower() != "content-length"), _length(data))
                return Answer(response.status, response.reason, known, data)
        except (OSError, HTTPException) as error:
            return error_answer(502, "BadGateway", f"the server behind the proxy: {type(error).__name__}")
        finally:
            connection.close()


def end_to_end(headers: Iterable[tuple[str, str]]) -> Headers:
    """Those that concern client and server."""
    return tuple((name, value) for name, value in headers if name.lower() not in HOP_BY_HOP)


def _length(data: bytes) -> tuple[str, str]:
    return "Content-Length", str(len(data))
