"""A program that mounts a folder at another place, read-only, with delays: opening, reading, bytes per second."""

from __future__ import annotations

import argparse
import os
import threading
import time
from errno import EROFS
from typing import Any

import mfusepy


class SlowFolder(mfusepy.Operations):  # type: ignore[misc]
    """The files of a folder; opening one takes `open_s`, a read `read_s`, and all reads share a bandwidth."""

    def __init__(self, source: str, open_s: float, read_s: float, bytes_per_s: float, after_s: float) -> None:
        self.source, self.open_s, self.read_s, self.bytes_per_s = source, open_s, read_s, bytes_per_s
        self.first_open: float | None = None
        self.after_s = after_s
        self.turn = threading.Lock()
        self.free_at = 0.0

    def _slow(self) -> bool:
        return self.first_open is not None and time.monotonic() >= self.first_open + self.after_s

    def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
        found = os.lstat(self.source + path)
        return {key: getattr(found, key) for key in ("st_mode", "st_size", "st_mtime", "st_nlink", "st_ino", "st_uid")}

    def readdir(self, path: str, fh: Any) -> list[str]:
        return [".", "..", *os.listdir(self.source + path)]

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise mfusepy.FuseOSError(EROFS)
        if self.first_open is None:
            self.first_open = time.monotonic()
        if self._slow():
            time.sleep(self.open_s)
        return os.open(self.source + path, os.O_RDONLY)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        content = os.pread(fh, size, offset)
        if self._slow():
            wait = self.read_s
            if self.bytes_per_s:
                with self.turn:
                    now = time.monotonic()
                    self.free_at = max(self.free_at, now) + len(content) / self.bytes_per_s
                    wait += self.free_at - now
            time.sleep(wait)
        return content

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--open-ms", type=float, default=0)
    parser.add_argument("--read-ms", type=float, default=0)
    parser.add_argument("--mbps", type=float, default=0, help="megabytes per second")
    parser.add_argument("--after-s", type=float, default=0, help="quick until so long after the first file was opened")
    a = parser.parse_args()
    folder = SlowFolder(a.source, a.open_ms / 1e3, a.read_ms / 1e3, a.mbps * 1e6, a.after_s)
    mfusepy.FUSE(folder, a.target, foreground=True, ro=True, allow_other=True, auto_cache=False)


if __name__ == "__main__":
    main()
