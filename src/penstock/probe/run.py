"""Several probes, one after the other: what goes wrong with one is its result, and the others are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError, SettingError
from penstock.probe import decode, storage
from penstock.probe import gpu_copy as copy
from penstock.probe import ipc as handover
from penstock.probe.decode_samples import DecodeMaterial
from penstock.probe.results import CopyRates, DecodeRates, IpcCost, Probes, SkippedProbe, StorageProbe

Name = Literal["storage", "decode", "handover", "copy"]
NAMES: tuple[Name, ...] = get_args(Name)
SECONDS = 40.0
SECONDS_MAX = 70.0
"""Starting processes comes on top; all together stay within 90 s."""
SHARES: dict[Name, float] = {"storage": 0.2, "decode": 0.5, "handover": 0.15, "copy": 0.15}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSubject:
    """What is probed with."""

    material: DecodeMaterial | SkippedProbe
    """Samples to decode, in whose shape a batch is handed over and copied; or why there are none."""
    path: str | Path | None = None
    """Whose storage is measured; or a URL."""
    batch_size: int = 32
    refresh: bool = False
    """Measure the storage again, though a curve is kept."""


def run_probes(
    subject: ProbeSubject, names: Collection[Name] = NAMES, *, seconds: float = SECONDS, clock: Clock = SYSTEM_CLOCK
) -> Probes:
    """Those that are named, in the order of NAMES, each within its share of the time."""
    if not 0 < seconds <= SECONDS_MAX:
        raise SettingError(f"seconds={seconds} is not above 0 and at most {SECONDS_MAX:g}")
    if subject.batch_size < 1:
        raise SettingError(f"batch_size={subject.batch_size} is not above 0")
    began = clock.now()
    return Probes(
        storage=_tried(lambda: _storage(subject, seconds)) if "storage" in names else None,
        decode=_tried(lambda: _decode(subject, seconds, clock)) if "decode" in names else None,
        handover=_tried(lambda: _handover(subject, seconds, clock)) if "handover" in names else None,
        copy=_tried(lambda: _copy(subject, seconds, clock)) if "copy" in names else None,
        seconds=clock.now() - began,
    )


def _storage(subject: ProbeSubject, seconds: float) -> StorageProbe | SkippedProbe:
    if subject.path is None:
        return SkippedProbe("no PATH was given")
    material = subject.material
    sample_bytes = storage.SAMPLE_BYTES if isinstance(material, SkippedProbe) else max(1, int(material.sample_bytes))
    curve = storage.probe(
        subject.path,
        sample_bytes=min(storage.SAMPLE_BYTES_MAX, sample_bytes),
        budget_s=min(storage.BUDGET_S, seconds * SHARES["storage"]),
        refresh=subject.refresh,
    )
    return StorageProbe(storage.storage_under(subject.path), curve)


def _decode(subject: ProbeSubject, seconds: float, clock: Clock) -> DecodeRates | SkippedProbe:
    if isinstance(subject.material, SkippedProbe):
        return subject.material
    return decode.probe_decode(subject.material, budget_s=seconds * SHARES["decode"], clock=clock)


def _handover(subject: ProbeSubject, seconds: float, clock: Clock) -> IpcCost | SkippedProbe:
    if isinstance(subject.material, SkippedProbe):
        return subject.material
    budget_s = min(handover.BUDGET_S, seconds * SHARES["handover"])
    return handover.probe_ipc(subject.material.slots, subject.batch_size, budget_s=budget_s, clock=clock)


def _copy(subject: ProbeSubject, seconds: float, clock: Clock) -> CopyRates | SkippedProbe:
    material = subject.material
    size = copy.BATCH_BYTES if isinstance(material, SkippedProbe) else subject.batch_size * material.decoded_bytes
    budget_s = min(copy.BUDGET_S, seconds * SHARES["copy"])
    return copy.probe_copy(size or copy.BATCH_BYTES, budget_s=budget_s, clock=clock)


def _tried(probe: Callable[[], Result | SkippedProbe]) -> Result | SkippedProbe:
    try:
        return probe()
    except (PenstockError, OSError, MemoryError) as error:
        return SkippedProbe(str(error) or type(error).__name__)
