"""Measured curves, kept per device: only the first run pays the seconds. Doubtful files are ignored."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

from penstock.storage import kept
from penstock.storage.curve import StorageCurve
from penstock.storage.kind import Storage

VERSION = 1
"""Raised whenever the way of measuring changes: older curves are then not comparable."""
MAX_AGE_S = 7 * 86400.0
_FILE_BYTES_MAX = 64 << 10
_FOLDER = "storage"


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
    record = kept.load(_FOLDER, key, _Record, _FILE_BYTES_MAX)
    if record is None:
        return None
    age_s = time.time() - record.curve.measured_unix_s
    usable = record.curve.sample_bytes == key.sample_bytes and 0 <= age_s <= MAX_AGE_S
    return record.curve if usable else None


def store(key: CurveKey, curve: StorageCurve) -> None:
    """Keep a curve."""
    kept.store(_FOLDER, _Record(key, curve))
