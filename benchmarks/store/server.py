"""A store that answers late: `python -m benchmarks.store.server FOLDER LATENCY_S BYTES_PER_S`, until its input ends.

It speaks as much S3 as the contestants need (GET with ranges, HEAD, PUT, ListObjectsV2; paths are /bucket/key), and is
a process of its own. Heads are parsed by hand and bytes go from the page cache to the socket by sendfile, because it
takes its share of the cores that the contestants run on.
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

from tests.support.proxy.book import Throttle

from benchmarks.peers.environment import ROOT

PIECE_BYTES = 256 << 10
"""Sent at once: connections take turns by so much."""
REASONS = {200: "OK", 206: "Partial Content", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange"}


@dataclass(frozen=True)
class Store:
    """What the store is like."""

    latency_s: float
    """From a request to the first byte of its answer."""
    bytes_per_s: float
    """Of all answers together."""

    @contextmanager
    def serving(self, folder: Path) -> Iterator[str]:
        """Its address, while it runs in a process of its own."""
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
    """A file, held open: whoever reads an object that is replaced meanwhile gets the old one to its end."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        about = os.fstat(self.file.fileno())
        self.size = about.st_size
        self.etag = f'"{about.st_size:x}-{about.st_mtime_ns:x}"'
        self.modified_s = about.st_mtime

    @cached_property
    def headers(self) -> dict[str, str]:
        return {"ETag": self.etag, "Last-Modified": formatdate(self.modified_s, usegmt=True), "Accept-Ranges": "bytes"}


class Server(ThreadingMixIn, TCPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, store: Store) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.folder = folder
        self.latency_s = store.latency_s
        self.throttle = Throttle(store.bytes_per_s)
        self._objects: dict[str, Object] = {}

    def find(self, key: str) -> Object | None:
        """Opened when it is first asked for."""
        if key not in self._objects:
            path = self.folder / key
            if ".." in path.parts or not path.is_file():
                return None
            self._objects[key] = Object(path)
        return self._objects[key]

    def listed(self, prefix: str) -> Iterator[tuple[str, Object]]:
        """Every object whose key begins so."""
        keys = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*"))
        for key in keys:
            found = self.find(key) if key.startswith(prefix) else None
            if found is not None:
                yield key, found

    def put(self, key: str, data: bytes) -> Object:
        """Whole or not at all."""
        path = self.folder / key
        unfinished = path.with_name(path.name + ".put")
        unfinished.write_bytes(data)
        unfinished.rename(path)
        self._objects[key] = Object(path)
        return self._objects[key]


class Connection(StreamRequestHandler):
    """Request after request of one client."""

    disable_nagle_algorithm = True
    server: Server

    def handle(self) -> None:
        with suppress(OSError):  # a client that goes away in the middle of an answer may
            while line := self.rfile.readline():
                method, target, _ = line.decode("latin-1").split()
                self._answer(method, target, dict(iter(self._header, None)))

    def _header(self) -> tuple[str, str] | None:
        """The next one, None at the end of them."""
        name, colon, value = self.rfile.readline().decode("latin-1").partition(":")
        return (name.lower(), value.strip()) if colon else None

    def _answer(self, method: str, target: str, headers: Mapping[str, str]) -> None:
        data = self.rfile.read(int(headers.get("content-length", 0)))
        time.sleep(self.server.latency_s)
        asked = urlsplit(target)
        _, _, key = unquote(asked.path).lstrip("/").partition("/")
        found = self.server.put(key, data) if method == "PUT" else self.server.find(key)
        if not key:
            (prefix,) = parse_qs(asked.query).get("prefix", [""])
            self._small(200, _listing(self.server.listed(prefix)))
        elif found is None:
            self._small(404, _error("NoSuchKey"), empty=method == "HEAD")
        elif method == "PUT":
            self._head(200, 0, found.headers)
        elif headers.get("if-match", found.etag) != found.etag:
            self._small(412, _error("PreconditionFailed"), empty=method == "HEAD")
        else:
            self._object(found, headers.get("range"), empty=method == "HEAD")

    def _object(self, found: Object, asked: str | None, *, empty: bool) -> None:
        start, stop = span(asked, found.size)
        if start >= stop > 0:
            self._small(416, _error("InvalidRange"), empty=empty)
            return
        part = {"Content-Range": f"bytes {start}-{stop - 1}/{found.size}"} if asked else {}
        self._head(206 if asked else 200, stop - start, found.headers | part)
        if not empty:
            self._send(found, start, stop)

    def _send(self, found: Object, start: int, stop: int) -> None:
        while start < stop:
            count = min(PIECE_BYTES, stop - start)
            time.sleep(self.server.throttle.delay_s(count))
            while count:
                sent = os.sendfile(self.connection.fileno(), found.file.fileno(), start, count)
                start, count = start + sent, count - sent

    def _small(self, status: int, body: bytes, *, empty: bool = False) -> None:
        self._head(status, len(body), {"Content-Type": "application/xml"})
        if not empty:
            self.wfile.write(body)

    def _head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


def span(asked: str | None, size: int) -> tuple[int, int]:
    """The bytes to send, from and to, of `bytes=0-511`, `bytes=512-` or `bytes=-512`."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked or "")
    if found is None or found[0] == "bytes=-":
        return 0, size
    if not found[1]:
        return max(0, size - int(found[2])), size
    return int(found[1]), min(size, int(found[2]) + 1) if found[2] else size


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
    """Says its port when it is ready."""
    folder, latency_s, bytes_per_s = sys.argv[1:]
    with Server(Path(folder), Store(float(latency_s), float(bytes_per_s))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
