"""Locks between the processes of a machine: one process does the work that all need, and the others use its result."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock

from penstock.core.user_cache import cache_dir
from penstock.errors import PenstockError

WAIT_S = 60.0
"""Seconds after which a waiting process does the work itself; that costs time and nothing else."""
LOCKS = 64
"""Number of lock files in the cache, shared by all keys."""


@contextmanager
def keyed_lock(folder: str, key: str) -> Iterator[None]:
    """Hold a lock for this key, or go ahead without it after WAIT_S."""
    number = zlib.crc32(os.fsencode(key)) % LOCKS
    with file_lock(folder, f"{number}.lock", WAIT_S):
        yield


@contextmanager
def file_lock(folder: str, name: str, timeout_s: float | None = None) -> Iterator[None]:
    """Hold a lock that is a file in the user's cache; wait for it without limit unless `timeout_s` is given.

    The lock ends with the process that holds it. After the timeout, and where no lock can be made, the caller goes
    ahead without one.
    """
    try:
        wait_s = -1.0 if timeout_s is None else timeout_s
        lock = FileLock(cache_dir(folder) / name, timeout=wait_s, mode=0o600, poll_interval=0.005)
        lock.acquire()
    except (PenstockError, OSError, NotImplementedError):  # also TimeoutError
        yield
        return
    try:
        yield
    finally:
        lock.release()
