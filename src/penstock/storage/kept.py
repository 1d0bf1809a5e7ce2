"""Findings that are kept in the user's cache, a small file for each question: only the first run pays for them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.errors import StorageError
from penstock.storage.userdirs import cache_dir


class Record(Protocol):
    """What is kept, and for what it holds."""

    @property
    def key(self) -> Any:
        """A dataclass of plain values."""
        ...


Kept = TypeVar("Kept", bound=Record)


def load(folder: str, key: Any, kind: type[Kept], most_bytes: int) -> Kept | None:
    """The record of that key, or None where there is none, or it is corrupt or of something else."""
    try:
        with open(_file(folder, key), "rb") as stream:
            data = stream.read(most_bytes + 1)
        record = msgspec.json.decode(data, type=kind) if len(data) <= most_bytes else None
    except (OSError, StorageError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return record if record is not None and record.key == key else None


def store(folder: str, record: Record) -> None:
    """Keep it; where nothing can be kept, the next run measures again and nothing else is lost."""
    try:
        file = _file(folder, record.key)
        scratch = file.with_name(f"{file.name}.{os.getpid()}")
        scratch.write_bytes(msgspec.json.encode(record))
        scratch.replace(file)
    except (OSError, StorageError):
        return


def _file(folder: str, key: Any) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:32]
    return cache_dir(folder) / f"{digest}.json"
