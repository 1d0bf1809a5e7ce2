"""Measured curves, kept per device: only the first run pays the seconds. Doubtful files are ignored."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from penstock.errors import StorageError
from penstock.storage.curve import StorageCurve
from penstock.storage.kind import Storage
from penstock.storage.userdirs import cache_dir

VERSION = 1
"""Raised whenever the way of measuring changes: older curves are then not comparable."""
MAX_AGE_S = 7 * 86400.0
_FILE_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class CurveKey:
    """What a curve holds for. The machine belongs to it: a home may be shared by many of them."""

    version: int
    machine: str
    device: str
    filesystem: str
    sample_bytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    key: CurveKey
    curve: StorageCurve


def key_of(storage: Storage, sample_bytes: int) -> CurveKey:
    """Numbers of anonymous devices change with every mount: there the source and the place stand in."""
    anonymous = not storage.device or storage.device.startswith("0:")
    device = f"{storage.source} on {storage.mount_point}" if anonymous else f"{storage.device} {storage.source}"
    return CurveKey(VERSION, platform.node(), device, storage.filesystem, sample_bytes)


def load(key: CurveKey) -> StorageCurve | None:
    """The kept curve, or None where there is none, or it is old, corrupt or of something else."""
    try:
        with open(_file(key), "rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
        record = msgspec.json.decode(data, type=_Record) if len(data) <= _FILE_BYTES_MAX else None
    except (OSError, StorageError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if record is None:
        return None
    age_s = time.time() - record.curve.measured_unix_s
    usable = record.key == key and record.curve.sample_bytes == key.sample_bytes and 0 <= age_s <= MAX_AGE_S
    return record.curve if usable else None


def store(key: CurveKey, curve: StorageCurve) -> None:
    """Keep a curve; where nothing can be kept, the next run measures again and nothing else is lost."""
    try:
        file = _file(key)
        scratch = file.with_name(f"{file.name}.{os.getpid()}")
        scratch.write_bytes(msgspec.json.encode(_Record(key, curve)))
        scratch.replace(file)
    except (OSError, StorageError):
        return


def _file(key: CurveKey) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(asdict(key))).hexdigest()[:32]
    return cache_dir("storage") / f"{digest}.json"
