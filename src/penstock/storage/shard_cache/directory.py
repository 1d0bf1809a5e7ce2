"""The directory of a shard cache: who may stage what, and who has to go. Safe between processes.

It holds `entry-HASH.tar` (whole, verified shards; their mtime is the last use), `part-HASH` (copies under
way, already as long as they will be, so that the budget counts them) and `lock-HASH` (held by whoever
copies; the system frees it when a process dies, which is how the parts of dead jobs are known).
Decisions are made under `directory.lock`; bytes are copied outside it; a hit takes no lock at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from penstock.storage.shard_cache.copy import CacheFallback, ShardVersion

_NAME = re.compile(r"(?P<role>entry|part|lock)-(?P<digest>[0-9a-f]{32})(\.[A-Za-z0-9.]+)?")
LOCK_TIMEOUT_S = 10.0
"""Decisions take milliseconds; a job that waits longer for the lock reads directly instead."""


@dataclass(frozen=True, slots=True)
class StagingClaim:
    """The right to stage one shard, held through its lock."""

    part: Path
    lock: FileLock

    def release(self) -> None:
        """Leave nothing behind; after a success the part has been renamed and is not there any more."""
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            Path(self.lock.lock_file).unlink(missing_ok=True)
        self.lock.release()


class CacheDirectory:
    """Decisions over the shared files. Errors are the system's own: the cache makes reasons of them."""

    def __init__(self, path: Path, budget_bytes: int, on_evict: Callable[[int], None]) -> None:
        self.path = path
        self.budget_bytes = budget_bytes
        self.lock_timeout_s = LOCK_TIMEOUT_S
        self._on_evict = on_evict

    def entry(self, source: ShardVersion) -> Path:
        """Where a shard's copy is, or would be."""
        return self.path / f"entry-{source.digest}{source.suffix}"

    def has_copy(self, source: ShardVersion) -> bool:
        """Whether a whole copy is there."""
        try:
            return is_copy_of(source, self.entry(source).lstat())
        except OSError:
            return False

    def used_bytes(self) -> int:
        """Of all copies, those under way counted whole; 0 where there is no such directory."""
        try:
            return sum(status.st_size for _, status in self._scan("entry", "part"))
        except OSError:
            return 0

    def claim(self, source: ShardVersion) -> StagingClaim | CacheFallback | None:
        """Decide who stages: we (a claim), nobody any more (None: it is there), or not we (a reason)."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            self._sweep()
            if self.has_copy(source):
                return None
            claim = StagingClaim(self.path / f"part-{source.digest}", self._entry_lock(source.digest))
            if not _try_lock(claim.lock):
                return CacheFallback.BUSY
            try:
                self.entry(source).unlink(missing_ok=True)  # there, but not whole
                room = self._evict_for(source.size_bytes)
                if room:
                    _create(claim.part, source.size_bytes)
            except BaseException:
                claim.release()
                raise
            if not room:
                claim.release()
            return claim if room else CacheFallback.NO_SPACE

    def publish(self, claim: StagingClaim, source: ShardVersion) -> None:
        """Turn a verified part into an entry; under the lock, or a count might see it twice or not at all."""
        with self._locked():
            claim.part.replace(self.entry(source))
        with contextlib.suppress(OSError):  # not every system can sync a directory
            fd = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def remove(self, source: ShardVersion, status: os.stat_result) -> None:
        """The entry of a shard, if it still is that file and not one that another job has made since."""
        with self._locked():
            if os.path.samestat(self.entry(source).lstat(), status):
                self.entry(source).unlink()

    def _sweep(self) -> None:
        """Remove the parts and locks of jobs that died."""
        for digest in {name["digest"] for name, _ in self._scan("part", "lock")}:
            lock = self._entry_lock(digest)
            if _try_lock(lock):
                StagingClaim(self.path / f"part-{digest}", lock).release()

    def _evict_for(self, needed_bytes: int) -> bool:
        """Evict, least recently used first, until the budget holds; nothing where that would not help."""
        held = sum(status.st_size for _, status in self._scan("part"))
        if held + needed_bytes > self.budget_bytes:
            return False
        entries = sorted(self._scan("entry"), key=lambda found: found[1].st_mtime_ns)
        used = held + sum(status.st_size for _, status in entries)
        for name, status in entries:
            if used + needed_bytes <= self.budget_bytes:
                break
            with contextlib.suppress(PermissionError):  # Windows: open in another job
                (self.path / name[0]).unlink(missing_ok=True)
                used -= status.st_size
                self._on_evict(status.st_size)
        return used + needed_bytes <= self.budget_bytes

    def _scan(self, *roles: str) -> Iterator[tuple[re.Match[str], os.stat_result]]:
        """Our own files of these roles; anything else in the directory is not ours to count or remove."""
        for child in list(os.scandir(self.path)):
            name = _NAME.fullmatch(child.name)
            if name and name["role"] in roles:
                with contextlib.suppress(FileNotFoundError):
                    yield name, child.stat(follow_symlinks=False)

    def _entry_lock(self, digest: str) -> FileLock:
        return FileLock(self.path / f"lock-{digest}", mode=0o600, thread_local=False)

    def _locked(self) -> FileLock:
        path = self.path / "directory.lock"
        return FileLock(path, timeout=self.lock_timeout_s, mode=0o600, poll_interval=0.01)


def is_copy_of(source: ShardVersion, status: os.stat_result) -> bool:
    """Whether a file can be the whole copy of a shard; its bytes were verified before it got its name."""
    return stat.S_ISREG(status.st_mode) and status.st_size == source.size_bytes


def _create(part: Path, size_bytes: int) -> None:
    # Readable by its owner alone: the shard may be too.
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.truncate(fd, size_bytes)
    finally:
        os.close(fd)


def _try_lock(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except TimeoutError:
        return False
    return True
