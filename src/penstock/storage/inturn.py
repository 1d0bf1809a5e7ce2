"""What many processes of a machine need is done by one of them; the others wait for it, and find it done."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock

from penstock.errors import PenstockError
from penstock.storage.userdirs import cache_dir

WAIT_S = 60.0
"""Whoever has waited so long does the work itself: that costs time, and nothing else."""
LOCKS = 64
"""Files in the cache, however much there is to do."""


@contextmanager
def in_turn(folder: str, what: str) -> Iterator[None]:
    """One at a time for each `what`. A lock ends with its holder; where there can be none, everybody goes ahead."""
    try:
        number = zlib.crc32(os.fsencode(what)) % LOCKS
        lock = FileLock(cache_dir(folder) / f"{number}.lock", timeout=WAIT_S, mode=0o600, poll_interval=0.005)
        lock.acquire()
    except (PenstockError, OSError, NotImplementedError):  # also TimeoutError
        yield
        return
    try:
        yield
    finally:
        lock.release()
