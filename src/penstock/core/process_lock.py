"""What many processes of a machine need is done by one of them; the others wait for it, and find it done."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock

from penstock.core.user_cache import cache_dir
from penstock.errors import PenstockError

WAIT_S = 60.0
"""Whoever has waited so long does the work itself: that costs time, and nothing else."""
LOCKS = 64
"""Files in the cache, however much there is to do."""


@contextmanager
def keyed_lock(folder: str, key: str) -> Iterator[None]:
    """One at a time for each `what`; not longer than WAIT_S."""
    number = zlib.crc32(os.fsencode(key)) % LOCKS
    with file_lock(folder, f"{number}.lock", WAIT_S):
        yield


@contextmanager
def file_lock(folder: str, name: str, timeout_s: float | None = None) -> Iterator[None]:
    """Under a lock in the user's cache, waited for without end if not said otherwise.

    It ends with its holder; where there can be none, everybody goes ahead.
    """
    try:
        timeout_s = -1.0 if timeout_s is None else timeout_s
        lock = FileLock(cache_dir(folder) / name, timeout=timeout_s, mode=0o600, poll_interval=0.005)
        lock.acquire()
    except (PenstockError, OSError, NotImplementedError):  # also TimeoutError
        yield
        return
    try:
        yield
    finally:
        lock.release()
