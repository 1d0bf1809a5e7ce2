"""Results of tunings, stored per dataset, machine and request, so that only the first run pays for the measurement."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core import user_cache
from penstock.core.ranks import local_rank
from penstock.tuner.result import TuningFindings
from penstock.watcher.dataloader.settings import qualified_name
from penstock.watcher.loader_views import length_of
from penstock.watcher.machine.facts import machine_facts

VERSION = 1
"""Raised whenever the method of tuning changes: older results are then not comparable."""
MAX_AGE_S = 30 * 86400.0
_FILE_BYTES_MAX = 1 << 20
_FOLDER = "tune"
_PLAIN_TYPES = (str, int, float, bool, type(None))
_MAX_ATTRIBUTES = 256
"""Attributes or keys above which an object is data, not settings, and only their number counts."""
_LEVELS = 3
"""Depth to which objects inside objects are described: a subset of a dataset with a transform."""


class TuningKey(msgspec.Struct, frozen=True):
    """The machine, dataset and request for which a result holds."""

    version: int
    machine: Mapping[str, Any]
    dataset: Mapping[str, Any]
    request: Mapping[str, Any] = msgspec.field(name="asked")
    """Batch size, step, profile and the like: another request has another result."""


@dataclass(frozen=True, slots=True)
class _TuningRecord:
    key: TuningKey
    measured_unix_s: float
    findings: TuningFindings


def tuning_key(dataset: object, request: Mapping[str, Any]) -> TuningKey:
    """Return the key for this dataset on this machine."""
    return TuningKey(VERSION, _machine(), _dataset(dataset), dict(request))


def _machine() -> dict[str, Any]:
    """Describe the machine. Its name is included, because machines may share a home folder; so is its rank count."""
    facts = machine_facts()
    return {
        "node": platform.node(),
        "ranks": local_rank().world_size,
        "usable_cores": facts.usable_cores,
        "quota_cores": facts.quota_cores,
        "memory_bytes": facts.memory_bytes,
        "gpus": [gpu.name for gpu in facts.gpus],
        "platform": facts.platform,
        "python": facts.python,
        "torch": facts.torch,
    }


def _dataset(dataset: object) -> dict[str, Any]:
    """Describe a dataset by its class and source code, its length, and its attributes as far as they are plain."""
    try:
        code = inspect.getsource(type(dataset))
    except (OSError, TypeError):  # defined in an interactive session, or not in Python
        code = ""
    return {
        "name": qualified_name(type(dataset)),
        "length": length_of(dataset),
        "code": _digest(code),
        "attributes": _digest(_description(dataset, _LEVELS)),
    }


def _description(value: object, levels: int) -> str:
    """Return a text that changes if the value changes; the two ends of a list stand for all of it."""
    if isinstance(value, _PLAIN_TYPES):
        return repr(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value) if isinstance(os.fspath(value), str) else repr(value)
    name = qualified_name(value)
    if levels < 1 or inspect.isroutine(value) or inspect.isclass(value):
        return name
    if isinstance(value, list | tuple) and value:
        return f"{name} {len(value)} {_description(value[0], levels - 1)} {_description(value[-1], levels - 1)}"
    items = value if isinstance(value, dict) else _attributes(value)
    if len(items) > _MAX_ATTRIBUTES:
        return f"{name} {len(items)}"
    return f"{name} {sorted((str(key), _description(item, levels - 1)) for key, item in items.items())}"


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes in the object's dictionary and in the slots of its classes."""
    state = object.__getstate__(value)
    parts = state if isinstance(state, tuple) else (state,)
    return {name: item for part in parts for name, item in (part or {}).items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def load_findings(key: TuningKey) -> TuningFindings | None:
    """Return the stored result; None if there is none, or it is old, corrupt or of another key."""
    record = user_cache.load_record(_FOLDER, key, _TuningRecord, _FILE_BYTES_MAX)
    if record is None or not 0 <= time.time() - record.measured_unix_s <= MAX_AGE_S:
        return None
    return record.findings


def store_findings(key: TuningKey, findings: TuningFindings) -> None:
    """Store a result with the current time."""
    user_cache.store_record(_FOLDER, _TuningRecord(key, time.time(), findings))
