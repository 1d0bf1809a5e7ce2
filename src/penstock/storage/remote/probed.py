"""What a probe reads of a bucket: objects that are there already. Nothing is written to a store."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.errors import StorageError
from penstock.storage.coldread import ReadMethod
from penstock.storage.kind import Storage
from penstock.storage.kinds import StorageKind
from penstock.storage.remote.listing import find
from penstock.storage.remote.object import RemoteFile
from penstock.storage.remote.stores import shown_endpoint
from penstock.storage.remote.url import parse

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
            return self._file.read_all([(offset, view)])

    def drop(self, *, random: bool) -> None:
        """There is nothing of it on this machine; a cache of the store's own may help it."""


def storage_of(path: str) -> Storage:
    """What a URL lies in, as far as the URL tells."""
    url = parse(path)
    place = f"{url.scheme}://{url.bucket}"
    return Storage(
        path=Path(url.key or "."),
        mount_point=place,
        filesystem=url.scheme,
        source=shown_endpoint() if url.scheme == "s3" else "",
        device="",
        kind=StorageKind.OBJECT_STORE,
        rotational=None,
        chain=(place,),
        read_only=False,
    )


def probed_objects(path: str, wanted: Callable[[str], bool]) -> Sequence[str]:
    """Some of the shards that the URL means; where they are many, from all over."""
    found = find(path, wanted, enough=LISTED)
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
