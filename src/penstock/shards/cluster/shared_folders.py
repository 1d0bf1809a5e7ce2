"""Files by which a node shows that it sees the same folders as the machine that hands out the tasks.

A folder that is not shared would not always be missed: there may be another of the same name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import deflate

from penstock.errors import StorageError
from penstock.storage.local import LocalFile
from penstock.storage.object_store.url import is_remote

COMPARED_BYTES = 4096
MAX_WITNESSES = 16
"""Folders looked into by every task: those of one dataset are few, and a look costs microseconds."""


@dataclass(frozen=True, slots=True)
class WitnessFile:
    """A file as we see it."""

    path: str
    size: int
    head_crc32: int

    @classmethod
    def of(cls, path: str) -> WitnessFile:
        """What that file looks like from here."""
        with LocalFile(path) as file:
            return cls(path, file.size, deflate.crc32(file.read_at(0, COMPARED_BYTES)))

    def is_seen(self) -> bool:
        """Whether it looks the same from where this runs."""
        try:
            return WitnessFile.of(self.path) == self
        except StorageError:
            return False


def make_witness_files(paths: Iterable[str]) -> tuple[WitnessFile, ...]:
    """One file of each folder, of those that can be read here; what is not a local path needs none."""
    found: dict[str, WitnessFile] = {}
    for path in paths:
        folder = os.path.dirname(path)
        if folder not in found and not is_remote(path) and len(found) < MAX_WITNESSES:
            with suppress(StorageError):  # its task will say what is wrong with it
                found[folder] = WitnessFile.of(path)
    return tuple(found.values())
