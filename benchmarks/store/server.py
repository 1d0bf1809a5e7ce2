"""A store with high latency: `python -m benchmarks.store.server FOLDER LATENCY_S BYTES_PER_S`, until its stdin ends.

It implements the part of S3 that the loaders need (GET with ranges, HEAD, PUT, ListObjectsV2; paths are /bucket/key)
and runs in a process of its own. It runs on the same cores as the loaders, so it must use little CPU time: it parses
request heads itself, and sendfile sends the bytes from the page cache to the socket.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import cached_property
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer, ThreadingMixIn
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.proxy.throttle import Throttle

from benchmarks.peers.environment import ROOT

PIECE_BYTES = 256 << 10
"""Bytes that a connection sends at a time: connections share the bandwidth in units of this size."""
REASONS = {200: "OK", 206: "Partial Content", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange"}


@dataclass(frozen=True)
class Store:
    """The latency and the bandwidth of a store."""

    latency_s: float
    """Seconds from a request to the first byte of its response."""
    bytes_per_s: float
    """Bandwidth of all responses together."""

    @contextmanager
    def serving(self, folder: Path) -> Iterator[str]:
        """Run the store in a process of its own, and yield its address."""
        numbers = str(self.latency_s), str(self.bytes_per_s)
        command = [sys.executable, "-m", "benchmarks.store.server", str(folder), *numbers]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield f"http://127.0.0.1:{int(process.stdout.readline())}"
            finally:
                process.stdin.close()


class Object:
    """An open file: a client that reads an object while it is replaced gets the old content to its end."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        status = os.fstat(self.file.fileno())
        self.size = status.st_size
        self.etag = f'"{status.st_size:x}-{status.st_mtime_ns:x}"'
        self.modified_s = status.st_mtime

    @cached_property
    def headers(self) -> dict[str, str]:
        return {"ETag": self.etag, "Last-Modified": formatdate(self.modified_s, usegmt=True), "Accept-Ranges": "bytes"}


class Server(ThreadingMixIn, TCPServer):
    """The server of one folder, with one thread per connection."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, store: Store) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.folder = folder
        self.latency_s = store.latency_s
        self.throttle = Throttle(store.bytes_per_s)
        self._objects: dict[str, Object] = {}

    def find(self, key: str) -> Object | None:
        """Return an object, which is opened on the first request for it; None if there is none."""
        if key not in self._objects:
            path = self.folder / key
            if ".." in path.parts or not path.is_file():
                return None
            self._objects[key] = Object(path)
        return self._objects[key]

    def listed(self, prefix: str) -> Iterator[tuple[str, Object]]:
        """Yield the key and the object of every key with this prefix."""
        keys = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*"))
        for key in keys:
            found = self.find(key) if key.startswith(prefix) else None
            if found is not None:
                yield key, found

    def put(self, key: str, data: bytes) -> Object:
        """Store an object under a temporary name, and rename it when it is complete."""
        path = self.folder / key
        unfinished = path.with_name(path.name + ".put")
        unfinished.write_bytes(data)
        unfinished.rename(path)
        self._objects[key] = Object(path)
        return self._objects[key]


class Connection(StreamRequestHandler):
    """Handles the requests of one client, one after the other."""

    disable_nagle_algorithm = True
    server: Server

    def handle(self) -> None:
        with suppress(OSError):  # a client may disconnect during a response
            while line := self.rfile.readline():
                method, target, _ = line.decode("latin-1").split()
                self._respond(method, target, dict(iter(self._header, None)))

    def _header(self) -> tuple[str, str] | None:
        """Read the next header; return None at their end."""
        name, colon, value = self.rfile.readline().decode("latin-1").partition(":")
        return (name.lower(), value.strip()) if colon else None

    def _respond(self, method: str, target: str, headers: Mapping[str, str]) -> None:
        data = self.rfile.read(int(headers.get("content-length", 0)))
        time.sleep(self.server.latency_s)
        url = urlsplit(target)
        _, _, key = unquote(url.path).lstrip("/").partition("/")
        found = self.server.put(key, data) if method == "PUT" else self.server.find(key)
        if not key:
            (prefix,) = parse_qs(url.query).get("prefix", [""])
            self._send_body(200, _listing(self.server.listed(prefix)))
        elif found is None:
            self._send_body(404, _error("NoSuchKey"), empty=method == "HEAD")
        elif method == "PUT":
            self._send_head(200, 0, found.headers)
        elif headers.get("if-match", found.etag) != found.etag:
            self._send_body(412, _error("PreconditionFailed"), empty=method == "HEAD")
        else:
            self._send_object(found, headers.get("range"), empty=method == "HEAD")

    def _send_object(self, found: Object, byte_range: str | None, *, empty: bool) -> None:
        start, stop = span(byte_range, found.size)
        if start >= stop > 0:
            self._send_body(416, _error("InvalidRange"), empty=empty)
            return
        part = {"Content-Range": f"bytes {start}-{stop - 1}/{found.size}"} if byte_range else {}
        self._send_head(206 if byte_range else 200, stop - start, found.headers | part)
        if not empty:
            self._send_bytes(found, start, stop)

    def _send_bytes(self, found: Object, start: int, stop: int) -> None:
        while start < stop:
            count = min(PIECE_BYTES, stop - start)
            time.sleep(self.server.throttle.delay_s(count))
            while count:
                sent = os.sendfile(self.connection.fileno(), found.file.fileno(), start, count)
                start, count = start + sent, count - sent

    def _send_body(self, status: int, body: bytes, *, empty: bool = False) -> None:
        self._send_head(status, len(body), {"Content-Type": "application/xml"})
        if not empty:
            self.wfile.write(body)

    def _send_head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


def span(byte_range: str | None, size: int) -> tuple[int, int]:
    """Return (start, stop) of the bytes that `bytes=0-511`, `bytes=512-` or `bytes=-512` requests."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", byte_range or "")
    if match is None or match[0] == "bytes=-":
        return 0, size
    if not match[1]:
        return max(0, size - int(match[2])), size
    return int(match[1]), min(size, int(match[2]) + 1) if match[2] else size


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def _listing(objects: Iterable[tuple[str, Object]]) -> bytes:
    entries = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{each.size}</Size><ETag>{escape(each.etag)}</ETag>"
        f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(each.modified_s))}</LastModified>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for key, each in objects
    )
    head = "<Name>bench</Name><IsTruncated>false</IsTruncated>"
    return f"<?xml version='1.0'?>\n<ListBucketResult>{head}{entries}</ListBucketResult>".encode()


def main() -> None:
    """Serve until stdin ends; the port is printed when the server is ready."""
    folder, latency_s, bytes_per_s = sys.argv[1:]
    with Server(Path(folder), Store(float(latency_s), float(bytes_per_s))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
