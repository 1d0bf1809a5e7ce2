"""What tuning found, kept per dataset, machine and question: only the first run pays the seconds."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core import user_cache as kept
from penstock.core.ranks import local_rank
from penstock.tuner.result import TuningFindings
from penstock.watcher.dataloader.settings import qualified_name
from penstock.watcher.loader_views import length_of
from penstock.watcher.machine.facts import machine_facts

VERSION = 1
"""Raised whenever the way of tuning changes: older findings are then not comparable."""
MAX_AGE_S = 30 * 86400.0
_FILE_BYTES_MAX = 1 << 20
_FOLDER = "tune"
_PLAIN = (str, int, float, bool, type(None))
_MOST_INSIDE = 256
"""Attributes or keys: with more it is data, not settings."""
_LEVELS = 3
"""Of objects inside objects that are looked into: a subset of a dataset with a transform."""


@dataclass(frozen=True, slots=True)
class TuningKey:
    """What findings hold for."""

    version: int
    machine: Mapping[str, Any]
    dataset: Mapping[str, Any]
    asked: Mapping[str, Any]
    """Batch size, step, profile and the like: another question has another answer."""


@dataclass(frozen=True, slots=True)
class _TuningRecord:
    key: TuningKey
    measured_unix_s: float
    findings: TuningFindings


def key_of(dataset: object, asked: Mapping[str, Any]) -> TuningKey:
    """For this dataset on this machine."""
    return TuningKey(VERSION, _machine(), _dataset(dataset), dict(asked))


def _machine() -> dict[str, Any]:
    """The name belongs to it: a home may be shared by many machines. And how many ranks share it."""
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
    """Its class with its source, its length, and what its attributes hold as far as that is plain."""
    try:
        code = inspect.getsource(type(dataset))
    except (OSError, TypeError):  # made in a shell, or not in Python
        code = ""
    return {
        "name": qualified_name(type(dataset)),
        "length": length_of(dataset),
        "code": _digest(code),
        "attributes": _digest(_traits(dataset, _LEVELS)),
    }


def _traits(thing: object, levels: int) -> str:
    """Of long lists the ends stand for all."""
    if isinstance(thing, _PLAIN):
        return repr(thing)
    if isinstance(thing, os.PathLike):
        return os.fspath(thing) if isinstance(os.fspath(thing), str) else repr(thing)
    name = qualified_name(thing)
    if levels < 1 or inspect.isroutine(thing) or inspect.isclass(thing):
        return name
    if isinstance(thing, list | tuple) and thing:
        return f"{name} {len(thing)} {_traits(thing[0], levels - 1)} {_traits(thing[-1], levels - 1)}"
    inside = thing if isinstance(thing, dict) else _attributes(thing)
    if len(inside) > _MOST_INSIDE:
        return f"{name} {len(inside)}"
    return f"{name} {sorted((str(key), _traits(value, levels - 1)) for key, value in inside.items())}"


def _attributes(thing: object) -> dict[str, Any]:
    """In its dictionary, and in the slots of its classes."""
    state = object.__getstate__(thing)
    parts = state if isinstance(state, tuple) else (state,)
    return {name: value for part in parts for name, value in (part or {}).items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def load(key: TuningKey) -> TuningFindings | None:
    """What is kept, or None where there is nothing, or it is old, corrupt or of something else."""
    record = kept.load_record(_FOLDER, key, _TuningRecord, _FILE_BYTES_MAX)
    if record is None or not 0 <= time.time() - record.measured_unix_s <= MAX_AGE_S:
        return None
    return record.findings


def store(key: TuningKey, findings: TuningFindings) -> None:
    """Keep them."""
    kept.store_record(_FOLDER, _TuningRecord(key, time.time(), findings))
