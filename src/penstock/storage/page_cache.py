"""What the kernel's page cache holds, and whether it makes sense to read data through it."""

from __future__ import annotations

import errno
import os

from penstock.core.cgroups import free_bytes

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
