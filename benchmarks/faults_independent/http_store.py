"""A program that serves arrays over HTTP, each answer after a delay, and a share of the answers much later."""

from __future__ import annotations

import argparse
import random
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers each request for a sample."""

    delay_s = 0.0
    late_share = 0.0
    late_s = 0.0
    body = bytes(range(256)) * 16
    rng = random.Random(5)

    def do_GET(self) -> None:
        time.sleep(self.late_s if self.rng.random() < self.late_share else self.delay_s)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


class Server(ThreadingHTTPServer):
    """Accepts many connections at once."""

    request_queue_size = 128
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--late-share", type=float, default=0)
    parser.add_argument("--late-ms", type=float, default=0)
    a = parser.parse_args()
    Handler.delay_s, Handler.late_share, Handler.late_s = a.delay_ms / 1e3, a.late_share, a.late_ms / 1e3
    Server(("127.0.0.1", a.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
