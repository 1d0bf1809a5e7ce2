"""The directory of a shard cache: which process may copy which shard, and which entries are evicted.

Several processes may use the directory at once. It holds

- `entry-HASH.tar`: whole, verified shards; their modification time is the time of their last use;
- `part-HASH`: unfinished copies, created with their final length, so that the budget counts them;
- `lock-HASH`: held by the process that copies. The system frees it when the process dies, so a part without a held
  lock belongs to a dead process.

Decisions are made under `directory.lock`, bytes are copied outside it, and a hit takes no lock.
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
"""Seconds. Decisions take milliseconds; a job that waits longer for the lock reads the shard itself instead."""


@dataclass(frozen=True, slots=True)
class StagingClaim:
    """The right to copy one shard, held through its lock."""

    part: Path
    lock: FileLock

    def release(self) -> None:
        """Remove the part and the lock; after a success the part has been renamed already."""
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            Path(self.lock.lock_file).unlink(missing_ok=True)
        self.lock.release()


class CacheDirectory:
    """The files of a cache, and the decisions about them. Errors are raised as OSError."""

    def __init__(self, path: Path, budget_bytes: int, on_evict: Callable[[int], None]) -> None:
        self.path = path
        self.budget_bytes = budget_bytes
        self.lock_timeout_s = LOCK_TIMEOUT_S
        self._on_evict = on_evict

    def entry(self, source: ShardVersion) -> Path:
        """Return the path of a shard's copy, whether it exists or not."""
        return self.path / f"entry-{source.digest}{source.suffix}"

    def has_copy(self, source: ShardVersion) -> bool:
        """Return whether there is a whole copy."""
        try:
            return is_copy_of(source, self.entry(source).lstat())
        except OSError:
            return False

    def used_bytes(self) -> int:
        """Return the bytes of all copies, unfinished ones counted whole; 0 if there is no such directory."""
        try:
            return sum(status.st_size for _, status in self._scan("entry", "part"))
        except OSError:
            return 0

    def claim(self, source: ShardVersion) -> StagingClaim | CacheFallback | None:
        """Decide whether the caller copies a shard.

        Return a claim if it does, None if there is a copy already, and a reason if the shard cannot be copied now.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            self._remove_dead_copies()
            if self.has_copy(source):
                return None
            claim = StagingClaim(self.path / f"part-{source.digest}", self._entry_lock(source.digest))
            if not _try_lock(claim.lock):
                return CacheFallback.BUSY
            try:
                self.entry(source).unlink(missing_ok=True)  # an entry that is not whole
                has_space = self._evict_for(source.size_bytes)
                if has_space:
                    _create(claim.part, source.size_bytes)
            except BaseException:
                claim.release()
                raise
            if not has_space:
                claim.release()
            return claim if has_space else CacheFallback.NO_SPACE

    def publish(self, claim: StagingClaim, source: ShardVersion) -> None:
        """Rename a verified part to its entry; without the lock, a count might include it twice or not at all."""
        with self._locked():
            claim.part.replace(self.entry(source))
        with contextlib.suppress(OSError):  # not every platform can sync a directory
            fd = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def remove(self, source: ShardVersion, status: os.stat_result) -> None:
        """Remove the entry of a shard, if it is still that file and not one that another job has made since."""
        with self._locked():
            if os.path.samestat(self.entry(source).lstat(), status):
                self.entry(source).unlink()

    def _remove_dead_copies(self) -> None:
        """Remove the parts and locks of dead processes."""
        for digest in {name["digest"] for name, _ in self._scan("part", "lock")}:
            lock = self._entry_lock(digest)
            if _try_lock(lock):
                StagingClaim(self.path / f"part-{digest}", lock).release()

    def _evict_for(self, needed_bytes: int) -> bool:
        """Evict the least recently used entries until the shard fits; evict none if that cannot help."""
        unfinished = sum(status.st_size for _, status in self._scan("part"))
        if unfinished + needed_bytes > self.budget_bytes:
            return False
        entries = sorted(self._scan("entry"), key=lambda entry: entry[1].st_mtime_ns)
        used = unfinished + sum(status.st_size for _, status in entries)
        for name, status in entries:
            if used + needed_bytes <= self.budget_bytes:
                break
            with contextlib.suppress(PermissionError):  # Windows: open in another job
                (self.path / name[0]).unlink(missing_ok=True)
                used -= status.st_size
                self._on_evict(status.st_size)
        return used + needed_bytes <= self.budget_bytes

    def _scan(self, *roles: str) -> Iterator[tuple[re.Match[str], os.stat_result]]:
        """Yield the cache's files of these roles; other files are neither counted nor removed."""
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
    """Return whether a file can be the whole copy of a shard; its bytes were verified before it was renamed."""
    return stat.S_ISREG(status.st_mode) and status.st_size == source.size_bytes


def _create(part: Path, size_bytes: int) -> None:
    # Only the owner may read it, since the shard itself may be as private.
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
