"""Which bytes a probe reads: files that are there already, else a scratch file that never stays behind."""

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
"""With this much in existing files nothing is written."""
SCRATCH_BYTES = 256 << 20
CHUNK_BYTES = 16 << 20
_LARGE_BYTES = 8 << 20
_FILES_MAX = 64
_ENTRIES_MAX = 20_000


class ProbedFile(Protocol):
    """A file or an object that many threads may read at once."""

    size_bytes: int

    @property
    def method(self) -> ReadMethod:
        """How reads get past what this machine remembers."""
        ...

    def read_into(self, buffer: mmap.mmap, offset: int, length: int) -> int:
        """Fill the head of a buffer; returns the bytes read."""
        ...

    def drop(self, *, random: bool) -> None:
        """Forget what is remembered, before the next reads."""
        ...


Target = tuple[ProbedFile, int]
"""A file and an offset in it."""


class ProbePool:
    """Open files, cut into slots of equal length, so that one cell never reads the same bytes twice."""

    def __init__(self, files: Sequence[ProbedFile]) -> None:
        self.files = tuple(files)
        self.size_bytes = sum(file.size_bytes for file in files)

    def targets(self, length: int, limit: int, rng: random.Random, *, sequential: bool) -> list[Target]:
        """Up to `limit` places: neighbours from a random start, or places drawn without repeats."""
        ends = list(accumulate(file.size_bytes // length for file in self.files))
        total = ends[-1]
        count = min(limit, total)
        if sequential:
            start = rng.randrange(max(1, total))
            slots = [(start + step) % total for step in range(count)]
        else:
            slots = rng.sample(range(total), count)
        return [self._place(slot, ends, length) for slot in slots]

    def _place(self, slot: int, ends: list[int], length: int) -> Target:
        at = bisect_right(ends, slot)
        return self.files[at], (slot - (ends[at - 1] if at else 0)) * length


@dataclass(frozen=True, slots=True)
class PathSurvey:
    """What lies under a path already."""

    large: list[Path] = field(default_factory=list)
    """Largest first; whole on disk (holes would read at the speed of nothing)."""
    large_bytes: int = 0
    names: list[Path] = field(default_factory=list)
    """Some files of any size, to open and stat."""


@contextlib.contextmanager
def probe_pool(storage: StorageFacts, survey: PathSurvey, deadline_s: float, clock: Clock) -> Iterator[ProbePool]:
    """The files to read from, open with the coldest method they allow; writing stops at `deadline_s`."""
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


def survey(path: Path, deadline_s: float, clock: Clock) -> PathSurvey:
    """Look for files under `path`, on its own device, until there are enough or time is up."""
    device = path.stat().st_dev
    large: list[tuple[int, Path]] = []
    names: list[Path] = []
    for seen, file in enumerate(_names_under(path)):
        if seen >= _ENTRIES_MAX or clock.now() >= deadline_s:
            break
        with contextlib.suppress(OSError):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_dev != device or not os.access(file, os.R_OK):
                continue
            if len(names) < 4 * _FILES_MAX:
                names.append(file)
            if status.st_size >= _LARGE_BYTES and not _has_holes(status):
                large.append((status.st_size, file))
    large = sorted(large, reverse=True)[:_FILES_MAX]
    return PathSurvey([file for _, file in large], sum(size for size, _ in large), names)


def _names_under(path: Path) -> Iterator[Path]:
    """Everything below, as the directory gives it: to list a million names first would take minutes."""
    folders = [path]
    if not path.is_dir():
        yield path
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                yield Path(entry.path)


def _has_holes(status: os.stat_result) -> bool:
    return getattr(status, "st_blocks", status.st_size) * 512 < status.st_size * 0.9


@contextlib.contextmanager
def _scratch_file(folder: Path, deadline_s: float, clock: Clock) -> Iterator[Path]:
    """A file of random bytes; nameless where possible, so that even a killed probe leaves nothing."""
    nameless = getattr(os, "O_TMPFILE", 0)
    name: str | None = None
    try:
        if not nameless or not Path("/proc/self/fd").is_dir():
            raise OSError("no nameless files here")
        fd = os.open(folder, nameless | os.O_RDWR, 0o600)
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
    """Incompressible bytes, made durable chunk by chunk so that the clock is obeyed on slow disks too."""
    room = min(SCRATCH_BYTES, shutil.disk_usage(folder).free // 4)
    if room < CHUNK_BYTES:
        raise OSError(errno.ENOSPC, f"less than {4 * CHUNK_BYTES >> 20} MiB are free")
    for _ in range(room // CHUNK_BYTES):
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


OBJECTS = 16
"""Looked at: enough to time requests and to find bytes to read."""
LISTED = 4096
"""Shards among which they are chosen: a listing of millions would take minutes."""


class ProbedObject:
    """An object with the face of a file that is read past the page cache."""

    method = ReadMethod.REQUESTS

    def __init__(self, path: str) -> None:
        self._file = RemoteFile(path)
        self.size_bytes = self._file.size

    def read_into(self, buffer: mmap.mmap, offset: int, length: int) -> int:
        """One request; returns the bytes read, fewer only at the end of the object."""
        with memoryview(buffer) as whole, whole[: min(length, self.size_bytes - offset)] as view:
            return self._file.read_ranges([(offset, view)])

    def drop(self, *, random: bool) -> None:
        """There is nothing of it on this machine; a cache of the store's own may help it."""


def storage_of(path: str) -> StorageFacts:
    """What a URL lies in, as far as the URL tells."""
    url = parse_url(path)
    place = f"{url.scheme}://{url.bucket}"
    return StorageFacts(
        path=Path(url.key or "."),
        mount_point=place,
        filesystem=url.scheme,
        source=endpoint_without_credentials() if url.scheme == "s3" else "",
        device="",
        kind=StorageKind.OBJECT_STORE,
        rotational=None,
        chain=(place,),
        read_only=False,
    )


def probed_objects(path: str, wanted: Callable[[str], bool]) -> Sequence[str]:
    """Some of the shards that the URL means; where they are many, from all over."""
    found = find_objects(path, wanted, enough=LISTED)
    return found[:: max(1, len(found) // OBJECTS)][:OBJECTS]


def opened(
    paths: Sequence[str], least_bytes: int, stop_s: float, now: Callable[[], float]
) -> tuple[list[ProbedObject], list[float]]:
    """The objects, and how long the store took to tell of each; one of them must have so many bytes.

    After `stop_s` no more are looked at than it takes to find one.
    """
    objects, taken_s, found = [], [], False
    for path in paths:
        if found and now() >= stop_s:
            break
        before = now()
        objects.append(ProbedObject(path))
        taken_s.append(now() - before)
        found = found or objects[-1].size_bytes >= least_bytes
    if not found:
        size = f"{least_bytes >> 20} MiB"
        raise StorageError(f"nothing to measure with: no object has {size}", shard=paths[0], stage="probe")
    return objects, taken_s
