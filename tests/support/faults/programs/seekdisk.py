"""A disk with one head: `seekdisk.py SOURCE MOUNTPOINT SEEK_S OPEN_S BYTES_PER_S`, until its input ends.

Shows the files of a folder, read-only. A read that does not begin where the last read of any file ended costs a seek;
opening a file costs OPEN_S; bytes take their time. One request at a time, nothing is cached.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import mfusepy


class SeekDisk(mfusepy.Operations):  # type: ignore[misc]
    """Served by one thread, so one request waits for another as at a real head."""

    use_ns = True
    """Of times, which we do not tell; mfusepy wants it said."""

    def __init__(self, source: str, seek_s: float, open_s: float, bytes_per_s: float) -> None:
        self._source = source
        self._seek_s = seek_s
        self._open_s = open_s
        self._bytes_per_s = bytes_per_s
        self._head = ("", 0)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Metadata is free until the file is opened."""
        try:
            found = os.lstat(self._source + path)
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno) from None
        return {name: getattr(found, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")}

    def readdir(self, path: str, fh: int) -> list[str]:
        """Names only."""
        return [".", "..", *os.listdir(self._source + path)]

    def open(self, path: str, flags: int) -> int:
        """Where many small files spend their time."""
        if self._open_s > 0:
            time.sleep(self._open_s)
        return os.open(self._source + path, os.O_RDONLY)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """The head moves, then the bytes pass under it."""
        seek_s = 0.0 if self._head == (path, offset) else self._seek_s
        data = os.pread(fh, size, offset)
        time.sleep(seek_s + len(data) / self._bytes_per_s)
        self._head = (path, offset + len(data))
        return data

    def release(self, path: str, fh: int) -> int:
        """Closed."""
        os.close(fh)
        return 0


def _unmount_at_the_end(mountpoint: str) -> None:
    while not os.path.ismount(mountpoint):
        time.sleep(0.01)
    print("mounted", flush=True)
    sys.stdin.read(1)
    subprocess.run(["umount", "-l", mountpoint], check=False)
    os._exit(0)  # whatever still waits for us gets an error from the kernel


def main() -> None:
    """Until the watching thread ends the process."""
    source, mountpoint, *costs = sys.argv[1:]
    threading.Thread(target=_unmount_at_the_end, args=(mountpoint,), daemon=True).start()
    disk = SeekDisk(source, *map(float, costs))
    mfusepy.FUSE(disk, mountpoint, foreground=True, nothreads=True, ro=True, direct_io=True, fsname="seekdisk")


if __name__ == "__main__":
    main()
