"""The kernel's page cache: whether data fits into it, whether a page is in it, and reads that bypass it.

`ColdFile` and `choose_method` serve measurements of the storage itself.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.core.cgroups import free_bytes
from penstock.storage.mounts import StorageFacts

FREE_MEMORY_DIVISOR = 2
"""Data is worth caching up to this fraction (1/2) of the free memory: the training needs the rest."""


def fits_in_page_cache(size_bytes: int) -> bool:
    """Return whether the page cache can keep all the data for the next epoch.

    If it cannot, every read through it evicts pages that are needed later, and pays a copy and half a core per GB/s.
    """
    return size_bytes <= free_bytes() // FREE_MEMORY_DIVISOR


def is_cached(fd: int, offset: int) -> bool:
    """Return whether a page is cached, by a read that must not wait (RWF_NOWAIT).

    The attempt starts the read, and a fast disk may finish it in time: one True among many proves nothing.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) > 0
    except OSError as error:
        # File systems without RWF_NOWAIT (NFS) cannot answer; the dropping of pages is assumed to have worked.
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise


ALIGNMENT = 4096
"""Bytes. O_DIRECT needs offsets, lengths and memory aligned to the device's blocks; no device needs more."""

_CACHING_FILESYSTEMS = ("zfs",)
"""Filesystems that accept O_DIRECT and the dropping of pages, but read from a cache of their own."""

_MAX_DROPS = 16
"""How often pages are dropped: the kernel skips pages that another core has just touched; the next call drops them."""


class ReadMethod(StrEnum):
    """The methods by which a read bypasses the page cache."""

    DIRECT = "direct"
    DROPPED = "dropped"
    WARM = "warm"
    REQUESTS = "requests"
    """Requests to an object store, which involve no page cache."""


class ColdFile:
    """A file that is opened to measure reads. Several threads may read its descriptor at once."""

    def __init__(self, path: Path, method: ReadMethod) -> None:
        self.path = path
        self.method = method
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        if method is ReadMethod.DIRECT:
            flags |= getattr(os, "O_DIRECT", 0)
        self.fd = os.open(path, flags)
        self.size_bytes = os.fstat(self.fd).st_size

    def read_into(self, buffer: mmap.mmap, offset: int, length: int) -> int:
        """Fill the beginning of an aligned buffer; return the bytes read, fewer only at the end of the file."""
        with memoryview(buffer) as whole, whole[:length] as view:
            if hasattr(os, "preadv"):
                return os.preadv(self.fd, [view], offset)
            with open(
                self.path, "rb", buffering=0
            ) as stream:  # Windows has no preadv: open again, for a position of its own
                stream.seek(offset)
                return stream.readinto(view) or 0

    def drop(self, *, random: bool) -> None:
        """Drop cached pages, and announce the access pattern: readahead would warm the next random reads."""
        if self.method is ReadMethod.WARM or not hasattr(os, "posix_fadvise"):
            return
        with contextlib.suppress(OSError):  # only a hint; the method was tested when it was chosen
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_SEQUENTIAL)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def choose_method(path: Path, storage: StorageFacts) -> ReadMethod:
    """Return the coldest method that works on this file, found by trying."""
    if storage.kind.in_memory or storage.filesystem in _CACHING_FILESYSTEMS:
        return ReadMethod.WARM
    if hasattr(os, "O_DIRECT") and _direct_works(path):
        return ReadMethod.DIRECT
    if hasattr(os, "posix_fadvise") and drop_pages(path):
        return ReadMethod.DROPPED
    return ReadMethod.WARM


def drop_pages(path: Path) -> bool:
    """Write out and drop a file's cached pages; return whether they are gone, as far as the kernel shows."""
    with ColdFile(path, ReadMethod.DROPPED) as file:
        with contextlib.suppress(OSError):
            os.fsync(file.fd)  # dirty pages are not dropped
        offsets = range(0, max(1, file.size_bytes), max(ALIGNMENT, file.size_bytes // 16))
        for _ in range(_MAX_DROPS):
            file.drop(random=True)
            if sum(is_cached(file.fd, offset) for offset in offsets) <= len(offsets) // 8:
                return True
    return False


def _direct_works(path: Path) -> bool:
    # Some filesystems accept the flag when opening but refuse the read.
    try:
        with ColdFile(path, ReadMethod.DIRECT) as file, mmap.mmap(-1, ALIGNMENT) as buffer:
            return file.read_into(buffer, 0, ALIGNMENT) > 0
    except OSError:
        return False
