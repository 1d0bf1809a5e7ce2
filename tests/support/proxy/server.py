"""The proxy: one thread accepts connections, and each connection has a thread of its own, until `close`."""

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
from tests.support.proxy.faults import ResponseFault
from tests.support.proxy.messages import Headers, Request, Response, error_response
from tests.support.proxy.state import Counts, Predicate, ProxyState, Rule
from tests.support.proxy.throttle import Throttle
from tests.support.proxy.upstream import Upstream, end_to_end

PIECE_BYTES = 64 << 10
"""Bytes that are sent at a time, so that a limited bandwidth is used evenly."""
POLL_S = 0.02
"""Seconds within which the accepting thread notices that it has to stop."""
WAIT_TIMEOUT_S = 20.0


class FaultProxy:
    """A proxy for the server at `upstream` (`http://127.0.0.1:5000`); clients connect to its own `url`.

    with FaultProxy(server_url) as proxy:
        proxy.inject(Cut(after_bytes=100), when=lambda request: request.path.endswith(".tar"), times=1)
    """

    def __init__(self, upstream: str, *, latency_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        self._state = ProxyState()
        self._server = _Server(Upstream.at(upstream), self._state)
        self.slow_down(latency_s=latency_s, bytes_per_s=bytes_per_s)
        host, port = self._server.server_address[:2]
        self.url = f"http://{host!s}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="penstock-proxy")
        self._thread.start()

    def inject(self, fault: ResponseFault, when: Predicate = lambda _: True, times: int | None = None) -> None:
        """Inject the fault into requests for which `when` is true from now on; `times` limits how many.

        If several faults apply to a request, the one that was injected first and is not used up is taken.
        """
        if times is not None and times < 1:
            raise SettingError(f"a fault cannot be injected {times} times")
        self._state.add_rule(Rule(fault, when, times))

    def remove_faults(self) -> None:
        """Inject no more faults."""
        self._state.remove_rules()

    def slow_down(self, *, latency_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Delay every response by a latency from now on, and share a bandwidth between all of them (None: no limit)."""
        if latency_s < 0 or (bytes_per_s is not None and bytes_per_s <= 0):
            raise SettingError(f"a latency of {latency_s} s or a bandwidth of {bytes_per_s} bytes/s is impossible")
        self._server.latency_s = latency_s
        self._server.throttle = None if bytes_per_s is None else Throttle(bytes_per_s)

    @property
    def counts(self) -> Counts:
        """The present counts of requests, bytes and faults."""
        return self._state.counts

    @property
    def requests(self) -> list[Request]:
        """All requests in the order in which they came."""
        return self._state.requests

    def wait_until(self, condition: Callable[[Counts], bool], timeout_s: float = WAIT_TIMEOUT_S) -> Counts:
        """Wait until the condition holds for the counts, and return them; raise TimeoutError after the timeout."""
        return self._state.wait_until(condition, timeout_s)

    def close(self) -> None:
        """Close all connections and wait until every thread has ended."""
        self._server.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.shut_connections_down()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FaultProxy at {self.url}: {self.counts}>"


class _Server(ThreadingMixIn, TCPServer):
    """A server with one thread per connection; `server_close` waits for them."""

    daemon_threads = False
    block_on_close = True
    request_queue_size = 256

    def __init__(self, upstream: Upstream, state: ProxyState) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = upstream
        self.state = state
        self.latency_s = 0.0
        self.throttle: Throttle | None = None
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection that was accepted."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.discard(request)
        super().close_request(request)

    def shut_connections_down(self) -> None:
        """End all connections, which wakes the threads that wait for a client."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Connection(BaseHTTPRequestHandler):
    """Handles the requests of one client, one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        """Handle the connection; that it breaks, by a fault or by the client, is no error."""
        with suppress(OSError):
            super().handle()

    def do_GET(self) -> None:
        """Handle a request with any method."""
        path, headers = self.path, end_to_end(self.headers.items())
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request, fault = self.server.state.begin(self.command, path, self.headers.get("Range"))
        writer = _ClientWriter(self)

        def forward(changed_headers: Headers) -> Response:
            return self.server.upstream.request(request.method, path, changed_headers, body)

        try:
            writer.wait(self.server.latency_s)
            if "Transfer-Encoding" in self.headers:
                self.close_connection = True
                refusal = error_response(411, "MissingContentLength", "the proxy takes no chunked bodies")
                fault.deliver(refusal, writer)
            else:
                fault.deliver(fault.fetch(request, headers, forward), writer)
        finally:
            writer.end_request()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because `FaultProxy.requests` has all requests."""


class _ClientWriter:
    """The ResponseWriter of one request."""

    def __init__(self, client: _Connection) -> None:
        self._client = client
        self._left = 0
        """Bytes of the body that have not been sent."""
        self._in_flight = True

    def write_head(self, response: Response) -> None:
        client = self._client
        self._left = 0 if client.command == "HEAD" else len(response.body)
        client.send_response_only(response.status, response.reason)
        for name, value in response.headers:
            client.send_header(name, value)
        if not self._left:
            self.end_request()
        client.end_headers()

    def write_body(self, data: bytes) -> None:
        for start in range(0, min(len(data), self._left), PIECE_BYTES):
            self._write_piece(data[start : start + PIECE_BYTES])

    def _write_piece(self, data: bytes) -> None:
        server = self._client.server
        if server.throttle is not None:
            self.wait(server.throttle.delay_s(len(data)))
        server.state.count_body_bytes(len(data))
        self._left -= len(data)
        if not self._left:
            self.end_request()
        self._client.wfile.write(data)

    def end_request(self) -> None:
        """Count the request as ended, once.

        This must be called before the last bytes are sent: otherwise a client that has them and sends its next request
        at once would count as two requests in flight.
        """
        if self._in_flight:
            self._in_flight = False
            self._client.server.state.end()

    def wait(self, seconds: float) -> None:
        """Sleep; close the connection if the proxy is closed meanwhile."""
        if seconds and self._client.server.closing.wait(seconds):
            self.cut()

    def cut(self) -> NoReturn:
        raise ConnectionAbortedError

    def hang(self) -> NoReturn:
        while self._client.connection.recv(PIECE_BYTES):
            pass
        self.cut()
