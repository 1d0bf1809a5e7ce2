"""Mount a simulated disk with one head: `seekdisk.py SOURCE MOUNTPOINT SEEK_S OPEN_S BYTES_PER_S`.

The mounted filesystem has the files of the folder SOURCE, read-only. A read that does not begin where the last read of
any file ended takes SEEK_S longer, and opening a file takes OPEN_S. It serves one request at a time and caches nothing.
It is unmounted when the standard input ends.
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
    """The filesystem. One thread serves it, so that a request waits for the one before it, as at a real disk head."""

    use_ns = True
    """Unit of times in `getattr`, which mfusepy requires to be set, although we return no times."""

    def __init__(self, source: str, seek_s: float, open_s: float, bytes_per_s: float) -> None:
        self._source = source
        self._seek_s = seek_s
        self._open_s = open_s
        self._bytes_per_s = bytes_per_s
        self._head = ("", 0)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Return metadata without a delay."""
        try:
            status = os.lstat(self._source + path)
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno) from None
        return {name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._source + path)]

    def open(self, path: str, flags: int) -> int:
        """Open a file after the delay for opening."""
        if self._open_s > 0:
            time.sleep(self._open_s)
        return os.open(self._source + path, os.O_RDONLY)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Read after the time of a seek, if the head has to move, and the time of the bytes."""
        seek_s = 0.0 if self._head == (path, offset) else self._seek_s
        data = os.pread(fh, size, offset)
        time.sleep(seek_s + len(data) / self._bytes_per_s)
        self._head = (path, offset + len(data))
        return data

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


def _unmount_at_the_end(mountpoint: str) -> None:
    """Print a line when the disk is mounted; when the standard input ends, unmount it and end the process."""
    while not os.path.ismount(mountpoint):
        time.sleep(0.01)
    print("mounted", flush=True)
    sys.stdin.read(1)
    subprocess.run(["umount", "-l", mountpoint], check=False)
    os._exit(0)  # requests that are not answered yet get an error from the kernel


def main() -> None:
    """Serve the disk until the other thread ends the process."""
    source, mountpoint, *costs = sys.argv[1:]
    threading.Thread(target=_unmount_at_the_end, args=(mountpoint,), daemon=True).start()
    disk = SeekDisk(source, *map(float, costs))
    mfusepy.FUSE(disk, mountpoint, foreground=True, nothreads=True, ro=True, direct_io=True, fsname="seekdisk")


if __name__ == "__main__":
    main()
