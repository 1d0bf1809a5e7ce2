"""The proxy itself: a thread that accepts, and one for each connection, until `close`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from types import TracebackType
from typing import Any, NoReturn, Self

from penstock.errors import SettingError
from tests.support.proxy.book import Book, Counts, Rule, Throttle, When
from tests.support.proxy.faults import Fault
from tests.support.proxy.messages import Answer, Headers, Request, error_answer
from tests.support.proxy.upstream import Upstream, end_to_end

PIECE_BYTES = 64 << 10
"""Sent at once, so that a capped bandwidth is even."""
POLL_S = 0.02
"""How soon the accepting thread sees that it shall stop."""
PATIENCE_S = 20.0


class FaultProxy:
    """Stands before the server at `upstream` (`http://127.0.0.1:5000`); clients are given its own `url`.

    with FaultProxy(server_url) as proxy:
        proxy.inject(Cut(after_bytes=100), when=lambda request: request.path.endswith(".tar"), times=1)
    """

    def __init__(self, upstream: str, *, latency_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        self._book = Book()
        self._server = _Server(Upstream.at(upstream), self._book)
        self.slow_down(latency_s=latency_s, bytes_per_s=bytes_per_s)
        host, port = self._server.server_address[:2]
        self.url = f"http://{host!s}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="penstock-proxy")
        self._thread.start()

    def inject(self, fault: Fault, when: When = lambda _: True, times: int | None = None) -> None:
        """From now on the fault strikes the requests for which `when` is true: so many times, or every time.

        Where several rules suit a request, the one that was given first and is not used up strikes.
        """
        if times is not None and times < 1:
            raise SettingError(f"a fault cannot strike {times} times")
        self._book.add_rule(Rule(fault, when, times))

    def heal(self) -> None:
        """No more faults."""
        self._book.drop_rules()

    def slow_down(self, *, latency_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """From now on every request waits so long for its answer, and all of them share the bandwidth."""
        if latency_s < 0 or (bytes_per_s is not None and bytes_per_s <= 0):
            raise SettingError(f"a latency of {latency_s} s or a bandwidth of {bytes_per_s} bytes/s cannot be had")
        self._server.latency_s = latency_s
        self._server.throttle = None if bytes_per_s is None else Throttle(bytes_per_s)

    @property
    def counts(self) -> Counts:
        """Requests, bytes, faults, requests in flight."""
        return self._book.counts

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order in which they came."""
        return self._book.requests

    def wait_until(self, true: Callable[[Counts], bool], timeout_s: float = PATIENCE_S) -> Counts:
        """Returns as soon as the counts are so; TimeoutError if that does not come."""
        return self._book.wait_until(true, timeout_s)

    def close(self) -> None:
        """Connections are closed and every thread has ended."""
        self._server.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FaultProxy at {self.url}: {self.counts}>"


class _Server(ThreadingMixIn, TCPServer):
    """One thread a connection; `server_close` waits for them."""

    daemon_threads = False
    block_on_close = True
    request_queue_size = 256

    def __init__(self, upstream: Upstream, book: Book) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = upstream
        self.book = book
        self.latency_s = 0.0
        self.throttle: Throttle | None = None
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """A connection was accepted."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        """It has ended."""
        with self._lock:
            self._open.discard(request)
        super().close_request(request)

    def hang_up(self) -> None:
        """Whoever waits for a client is woken."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Connection(BaseHTTPRequestHandler):
    """Request after request of one client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        """A connection that breaks, by us or by the client, is what we are here for."""
        with suppress(OSError):
            super().handle()

    def do_GET(self) -> None:
        """Any method."""
        path, headers = self.path, end_to_end(self.headers.items())
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request, fault = self.server.book.begin(self.command, path, self.headers.get("Range"))
        line = _Line(self)

        def forward(asked: Headers) -> Answer:
            return self.server.upstream.ask(request.method, path, asked, sent)

        try:
            line.wait(self.server.latency_s)
            if "Transfer-Encoding" in self.headers:
                self.close_connection = True
                fault.deliver(error_answer(411, "MissingContentLength", "the proxy takes no chunked bodies"), line)
            else:
                fault.deliver(fault.fetch(request, headers, forward), line)
        finally:
            line.done()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: `FaultProxy.requests` tells."""


class _Line:
    """A client that waits for its answer."""

    def __init__(self, client: _Connection) -> None:
        self._client = client
        self._left = 0
        self._in_flight = True

    def head(self, answer: Answer) -> None:
        client = self._client
        self._left = 0 if client.command == "HEAD" else len(answer.body)
        client.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers:
            client.send_header(name, value)
        if not self._left:
            self.done()
        client.end_headers()

    def body(self, data: bytes) -> None:
        for start in range(0, min(len(data), self._left), PIECE_BYTES):
            self._piece(data[start : start + PIECE_BYTES])

    def _piece(self, data: bytes) -> None:
        server = self._client.server
        if server.throttle is not None:
            self.wait(server.throttle.delay_s(len(data)))
        server.book.sending(len(data))
        self._left -= len(data)
        if not self._left:
            self.done()
        self._client.wfile.write(data)

    def done(self) -> None:
        """Counted before the last bytes go: who has them and asks again is not two clients."""
        if self._in_flight:
            self._in_flight = False
            self._client.server.book.end()

    def wait(self, seconds: float) -> None:
        if seconds and self._client.server.closing.wait(seconds):
            self.cut()

    def cut(self) -> NoReturn:
        raise ConnectionAbortedError

    def hang(self) -> NoReturn:
        while self._client.connection.recv(PIECE_BYTES):
            pass
        self.cut()
