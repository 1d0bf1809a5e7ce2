"""What the kernel's page cache holds, and whether it makes sense to read data through it."""

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
"""Data may take one part in this many of the free memory to be worth caching: the training needs the rest."""


def fits_in_page_cache(size_bytes: int) -> bool:
    """Whether the cache could keep all of it for the next epoch.

    If not, every read would push out what is needed later, and pay a copy and half a core's work per GB for it.
    """
    return size_bytes <= free_bytes() // FREE_MEMORY_DIVISOR


def is_cached(fd: int, offset: int) -> bool:
    """Whether a page is cached: a read that may not wait finds it or fails.

    Asking starts the read, and a fast disk may be done before the answer: one yes among many proves nothing.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) > 0
    except OSError as error:
        # Where the question is not supported (NFS), dropping is taken at its word.
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise


ALIGNMENT = 4096
"""O_DIRECT wants offsets, lengths and memory aligned to the device's blocks; no device asks for more."""

_CACHING_FILESYSTEMS = ("zfs",)
"""Filesystems that accept O_DIRECT and the dropping of pages, yet answer from a cache of their own."""

_MAX_DROPS = 16
"""The kernel passes over pages that another core has just touched; the next call gets them."""


class ReadMethod(StrEnum):
    """How a read gets past the page cache."""

    DIRECT = "direct"
    DROPPED = "dropped"
    WARM = "warm"
    REQUESTS = "requests"
    """To a store: there is no page cache on the way."""


class ColdFile:
    """A file open for measuring reads. Its descriptor may be read by many threads at once."""

    def __init__(self, path: Path, method: ReadMethod) -> None:
        self.path = path
        self.method = method
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        if method is ReadMethod.DIRECT:
            flags |= getattr(os, "O_DIRECT", 0)
        self.fd = os.open(path, flags)
        self.size_bytes = os.fstat(self.fd).st_size

    def read_into(self, buffer: mmap.mmap, offset: int, length: int) -> int:
        """Fill the head of an aligned buffer; returns the bytes read, fewer only at the end of the file."""
        with memoryview(buffer) as whole, whole[:length] as view:
            if hasattr(os, "preadv"):
                return os.preadv(self.fd, [view], offset)
            with open(self.path, "rb", buffering=0) as stream:  # Windows: a position per thread
                stream.seek(offset)
                return stream.readinto(view) or 0

    def drop(self, *, random: bool) -> None:
        """Forget cached pages, and say how the next reads will come: readahead would warm random ones."""
        if self.method is ReadMethod.WARM or not hasattr(os, "posix_fadvise"):
            return
        with contextlib.suppress(OSError):  # advice only; the method was proven when it was chosen
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_SEQUENTIAL)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def choose_method(path: Path, storage: StorageFacts) -> ReadMethod:
    """The coldest method that this file's filesystem really supports, found by trying."""
    if storage.kind.in_memory or storage.filesystem in _CACHING_FILESYSTEMS:
        return ReadMethod.WARM
    if hasattr(os, "O_DIRECT") and _direct_works(path):
        return ReadMethod.DIRECT
    if hasattr(os, "posix_fadvise") and drop_pages(path):
        return ReadMethod.DROPPED
    return ReadMethod.WARM


def drop_pages(path: Path) -> bool:
    """Write out and drop a file's cached pages; whether they are gone as far as the kernel lets us see."""
    with ColdFile(path, ReadMethod.DROPPED) as file:
        with contextlib.suppress(OSError):
            os.fsync(file.fd)  # dirty pages are not dropped
        places = range(0, max(1, file.size_bytes), max(ALIGNMENT, file.size_bytes // 16))
        for _ in range(_MAX_DROPS):
            file.drop(random=True)
            if sum(is_cached(file.fd, place) for place in places) <= len(places) // 8:
                return True
    return False


def _direct_works(path: Path) -> bool:
    # Some filesystems take the flag at open and refuse the read.
    try:
        with ColdFile(path, ReadMethod.DIRECT) as file, mmap.mmap(-1, ALIGNMENT) as buffer:
            return file.read_into(buffer, 0, ALIGNMENT) > 0
    except OSError:
        return False
