"""Runs several probes one after the other. The failure of one is its result, and the others are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError, SettingError
from penstock.probe import decode, gpu_copy, ipc, storage
from penstock.probe.decode import DecodeInput
from penstock.probe.results import CopyRates, DecodeRates, IpcCost, Probes, SkippedProbe, StorageProbe

ProbeName = Literal["storage", "decode", "ipc", "copy"]
NAMES: tuple[ProbeName, ...] = get_args(ProbeName)
SECONDS = 40.0
SECONDS_MAX = 70.0
"""The time to start processes is not included; with it all probes together stay within 90 s."""
BUDGET_SHARES: dict[ProbeName, float] = {"storage": 0.2, "decode": 0.5, "ipc": 0.15, "copy": 0.15}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSubject:
    """The data that the probes measure with."""

    decode_input: DecodeInput | SkippedProbe
    """Samples to decode, whose shape the batches of the ipc and copy probes have; or why there are none."""
    path: str | Path | None = None
    """A path or URL; the storage that it is on is measured."""
    batch_size: int = 32
    refresh: bool = False
    """Whether to measure the storage again although a cached curve exists."""


def run_probes(
    subject: ProbeSubject,
    names: Collection[ProbeName] = NAMES,
    *,
    seconds: float = SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> Probes:
    """Run the named probes in the order of NAMES, each within its share of the time."""
    if not 0 < seconds <= SECONDS_MAX:
        raise SettingError(f"seconds={seconds} is not above 0 and at most {SECONDS_MAX:g}")
    if subject.batch_size < 1:
        raise SettingError(f"batch_size={subject.batch_size} is not above 0")
    began = clock.now()
    return Probes(
        storage=_try(lambda: _storage(subject, seconds)) if "storage" in names else None,
        decode=_try(lambda: _decode(subject, seconds, clock)) if "decode" in names else None,
        ipc=_try(lambda: _ipc(subject, seconds, clock)) if "ipc" in names else None,
        copy=_try(lambda: _copy(subject, seconds, clock)) if "copy" in names else None,
        seconds=clock.now() - began,
    )


def _storage(subject: ProbeSubject, seconds: float) -> StorageProbe | SkippedProbe:
    if subject.path is None:
        return SkippedProbe("no PATH was given")
    samples = subject.decode_input
    sample_bytes = storage.SAMPLE_BYTES if isinstance(samples, SkippedProbe) else max(1, int(samples.sample_bytes))
    curve = storage.probe_storage(
        subject.path,
        sample_bytes=min(storage.SAMPLE_BYTES_MAX, sample_bytes),
        budget_s=min(storage.BUDGET_S, seconds * BUDGET_SHARES["storage"]),
        refresh=subject.refresh,
    )
    return StorageProbe(storage.storage_facts(subject.path), curve)


def _decode(subject: ProbeSubject, seconds: float, clock: Clock) -> DecodeRates | SkippedProbe:
    if isinstance(subject.decode_input, SkippedProbe):
        return subject.decode_input
    return decode.probe_decode(subject.decode_input, budget_s=seconds * BUDGET_SHARES["decode"], clock=clock)


def _ipc(subject: ProbeSubject, seconds: float, clock: Clock) -> IpcCost | SkippedProbe:
    if isinstance(subject.decode_input, SkippedProbe):
        return subject.decode_input
    budget_s = min(ipc.BUDGET_S, seconds * BUDGET_SHARES["ipc"])
    return ipc.probe_ipc(subject.decode_input.slots, subject.batch_size, budget_s=budget_s, clock=clock)


def _copy(subject: ProbeSubject, seconds: float, clock: Clock) -> CopyRates | SkippedProbe:
    samples = subject.decode_input
    size = gpu_copy.BATCH_BYTES if isinstance(samples, SkippedProbe) else subject.batch_size * samples.decoded_bytes
    budget_s = min(gpu_copy.BUDGET_S, seconds * BUDGET_SHARES["copy"])
    return gpu_copy.probe_copy(size or gpu_copy.BATCH_BYTES, budget_s=budget_s, clock=clock)


def _try(probe: Callable[[], Result | SkippedProbe]) -> Result | SkippedProbe:
    try:
        return probe()
    except (PenstockError, OSError, MemoryError) as error:
        return SkippedProbe(str(error) or type(error).__name__)
