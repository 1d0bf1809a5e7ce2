"""The bytes that the storage probe reads: existing files, else a temporary file; or objects of a bucket."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import shutil
import stat
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from penstock.core.clock import Clock
from penstock.errors import StorageError
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts
from penstock.storage.object_store.client import endpoint_without_credentials
from penstock.storage.object_store.listing import find_objects
from penstock.storage.object_store.remote_file import RemoteFile
from penstock.storage.object_store.url import parse_url
from penstock.storage.page_cache import ColdFile, ReadMethod, choose_method

ENOUGH_BYTES = 64 << 20
"""If existing files have this many bytes, no temporary file is written."""
SCRATCH_BYTES = 256 << 20
CHUNK_BYTES = 16 << 20
_LARGE_BYTES = 8 << 20
"""Smaller files are not read from."""
_FILES_MAX = 64
_ENTRIES_MAX = 20_000


class ProbedFile(Protocol):
    """A file or an object that several threads may read at the same time."""

    size_bytes: int

    @property
    def method(self) -> ReadMethod:
        """How reads bypass the caches of this machine."""
        ...

    def read_into(self, buffer: mmap.mmap, offset: int, length: int) -> int:
        """Read into the start of a buffer and return the number of bytes read."""
        ...

    def drop(self, *, random: bool) -> None:
        """Drop what this machine has cached of it, before the next reads."""
        ...


ReadTarget = tuple[ProbedFile, int]
"""A file and an offset in it."""


class ProbePool:
    """Open files that are divided into slots of equal length, so that one measurement never reads a byte twice."""

    def __init__(self, files: Sequence[ProbedFile]) -> None:
        self.files = tuple(files)
        self.size_bytes = sum(file.size_bytes for file in files)

    def targets(self, length: int, limit: int, rng: random.Random, *, sequential: bool) -> list[ReadTarget]:
        """Return up to `limit` slots: consecutive ones from a random start, or random ones without repetition."""
        ends = list(accumulate(file.size_bytes // length for file in self.files))
        total = ends[-1]
        count = min(limit, total)
        if sequential:
            start = rng.randrange(max(1, total))
            slots = [(start + step) % total for step in range(count)]
        else:
            slots = rng.sample(range(total), count)
        return [self._target(slot, ends, length) for slot in slots]

    def _target(self, slot: int, ends: list[int], length: int) -> ReadTarget:
        number = bisect_right(ends, slot)
        return self.files[number], (slot - (ends[number - 1] if number else 0)) * length


# -- files ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PathSurvey:
    """The files that exist under a path."""

    large: list[Path] = field(default_factory=list)
    """Large files, the largest first. Sparse files are left out, since reading a hole reads no storage."""
    large_bytes: int = 0
    names: list[Path] = field(default_factory=list)
    """Some files of any size, to open and stat."""


@contextlib.contextmanager
def probe_pool(storage: StorageFacts, survey: PathSurvey, deadline_s: float, clock: Clock) -> Iterator[ProbePool]:
    """Open the files to read from, with the coldest method that they allow; writing a file stops at `deadline_s`."""
    with contextlib.ExitStack() as stack:
        paths = survey.large
        if survey.large_bytes < ENOUGH_BYTES:
            folder = storage.path if storage.path.is_dir() else storage.path.parent
            try:
                paths = [stack.enter_context(_scratch_file(folder, deadline_s, clock))]
            except OSError as error:
                if not paths:
                    raise _nothing_to_read(storage, error) from error
        method = choose_method(paths[0], storage)
        yield ProbePool([stack.enter_context(ColdFile(path, method)) for path in paths])


def survey_path(path: Path, deadline_s: float, clock: Clock) -> PathSurvey:
    """Find files under `path`, on its own device, until the limits or the deadline are reached."""
    device = path.stat().st_dev
    large: list[tuple[int, Path]] = []
    names: list[Path] = []
    for count, file in enumerate(_names_under(path)):
        if count >= _ENTRIES_MAX or clock.now() >= deadline_s:
            break
        with contextlib.suppress(OSError):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_dev != device or not os.access(file, os.R_OK):
                continue
            if len(names) < 4 * _FILES_MAX:
                names.append(file)
            if status.st_size >= _LARGE_BYTES and not _is_sparse(status):
                large.append((status.st_size, file))
    large = sorted(large, reverse=True)[:_FILES_MAX]
    return PathSurvey([file for _, file in large], sum(size for size, _ in large), names)


def _names_under(path: Path) -> Iterator[Path]:
    """Yield all names below a path in directory order: listing a million names before the first would take minutes."""
    folders = [path]
    if not path.is_dir():
        yield path
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                yield Path(entry.path)


def _is_sparse(status: os.stat_result) -> bool:
    return getattr(status, "st_blocks", status.st_size) * 512 < status.st_size * 0.9


@contextlib.contextmanager
def _scratch_file(folder: Path, deadline_s: float, clock: Clock) -> Iterator[Path]:
    """Write a file of random bytes and remove it afterwards; it is unnamed where the filesystem supports that.

    An unnamed file disappears even if the probe is killed.
    """
    o_tmpfile = getattr(os, "O_TMPFILE", 0)
    name: str | None = None
    try:
        if not o_tmpfile or not Path("/proc/self/fd").is_dir():
            raise OSError("unnamed files are not supported")
        fd = os.open(folder, o_tmpfile | os.O_RDWR, 0o600)
    except OSError:  # not supported by NFS, some overlays, Windows
        fd, name = tempfile.mkstemp(prefix=".penstock-probe-", dir=folder)
    try:
        with open(fd, "wb", buffering=0, closefd=False) as stream:
            _fill(stream.fileno(), folder, deadline_s, clock)
        yield Path(name or f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
        if name is not None:
            Path(name).unlink()


def _fill(fd: int, folder: Path, deadline_s: float, clock: Clock) -> None:
    """Write incompressible bytes; each chunk is synced, so that the deadline is kept on slow disks too."""
    size = min(SCRATCH_BYTES, shutil.disk_usage(folder).free // 4)
    if size < CHUNK_BYTES:
        raise OSError(errno.ENOSPC, f"less than {4 * CHUNK_BYTES >> 20} MiB are free")
    for _ in range(size // CHUNK_BYTES):
        rest = memoryview(os.urandom(CHUNK_BYTES))
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
        if clock.now() >= deadline_s:
            break


def _nothing_to_read(storage: StorageFacts, error: OSError) -> StorageError:
    return StorageError(
        f"nothing to measure with: no file has {_LARGE_BYTES >> 20} MiB, and none can be written: {error}",
        shard=str(storage.path),
        stage="probe",
        advice="Point at a folder with shards in it, or at one that can be written",
    )


# -- objects of a bucket -------------------------------------------------------------------------------------------

OBJECTS = 16
"""Number of objects that are opened: enough to time requests and to find bytes to read."""
LISTED = 4096
"""Number of shards among which they are chosen: listing millions would take minutes."""


class ProbedObject:
    """An object of a bucket with the interface of a file that is read past the page cache."""

    method = ReadMethod.REQUESTS

    def __init__(self, url: str) -> None:
        self._file = RemoteFile(url)
        self.size_bytes = self._file.size

    def read_into(self, buffer: mmap.mmap, offset: int, length: int) -> int:
        """Read with one request; return the number of bytes read, fewer only at the end of the object."""
        with memoryview(buffer) as whole, whole[: min(length, self.size_bytes - offset)] as view:
            return self._file.read_ranges([(offset, view)])

    def drop(self, *, random: bool) -> None:
        """Do nothing: this machine caches nothing of an object. A cache inside the store may still answer."""


def identify_url(url: str) -> StorageFacts:
    """Return what a URL shows about the store that it is in."""
    parsed = parse_url(url)
    place = f"{parsed.scheme}://{parsed.bucket}"
    return StorageFacts(
        path=Path(parsed.key or "."),
        mount_point=place,
        filesystem=parsed.scheme,
        source=endpoint_without_credentials() if parsed.scheme == "s3" else "",
        device="",
        kind=StorageKind.OBJECT_STORE,
        rotational=None,
        chain=(place,),
        read_only=False,
    )


def choose_objects(url: str, wanted: Callable[[str], bool]) -> Sequence[str]:
    """Return some of the shards under a URL, spread evenly over those that were listed."""
    found = find_objects(url, wanted, enough=LISTED)
    return found[:: max(1, len(found) // OBJECTS)][:OBJECTS]


def open_objects(
    urls: Sequence[str], least_bytes: int, stop_s: float, now: Callable[[], float]
) -> tuple[list[ProbedObject], list[float]]:
    """Return the objects, and the seconds that the request about each took; one of them must have `least_bytes`.

    After `stop_s` no more objects are opened than are needed to find one of that size.
    """
    objects, times_s, found = [], [], False
    for url in urls:
        if found and now() >= stop_s:
            break
        before = now()
        objects.append(ProbedObject(url))
        times_s.append(now() - before)
        found = found or objects[-1].size_bytes >= least_bytes
    if not found:
        size = f"{least_bytes >> 20} MiB"
        raise StorageError(f"nothing to measure with: no object has {size}", shard=urls[0], stage="probe")
    return objects, times_s
