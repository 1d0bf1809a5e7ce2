"""What the probes found. Units are in the names; a probe that could not run says why instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.errors import SettingError
from penstock.probe.storage_curve import StorageCurve
from penstock.storage.mounts import StorageFacts


@dataclass(frozen=True, slots=True)
class SkippedProbe:
    """Instead of a number that was not measured."""

    reason: str


@dataclass(frozen=True, slots=True)
class StorageProbe:
    """What a path lies on, and its curve."""

    storage: StorageFacts
    curve: StorageCurve


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """All workers together."""

    workers: int
    samples_per_s: float
    cpu_s_per_sample: float
    """Of a core: grows with the workers where they share caches, memory or the threads of a core."""

    @property
    def cores_each(self) -> float:
        """The share of a core that a worker really got: less than 1 where others compute, or a quota holds it back."""
        return self.samples_per_s * self.cpu_s_per_sample / self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRates:
    """Decoding from memory, with no storage and no hand-over in it."""

    points: tuple[DecodePoint, ...]
    """By workers, the fewest first; ends early where the time was up."""
    sample_bytes: float
    """Encoded, of the parts that are decoded; the mean."""
    decoded_bytes: int
    """Of one sample as it lies in a batch."""
    samples: int
    """Different ones, decoded over and over."""
    bad: int
    """That could not be decoded and were left out."""
    source: str
    """Where they are from, in words."""
    seconds: float

    @property
    def cpu_s_per_sample(self) -> float:
        """Of a core, with the fewest workers that were tried."""
        return self.points[0].cpu_s_per_sample

    @property
    def best(self) -> DecodePoint:
        """The point with the highest rate."""
        return max(self.points, key=lambda point: point.samples_per_s)

    def scaling(self, point: DecodePoint) -> float:
        """Its rate per worker over that of the first point: 1 where workers are not in each other's way."""
        first = self.points[0]
        return point.samples_per_s / point.workers / (first.samples_per_s / first.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcCost:
    """Dummy batches through a torch DataLoader with one worker: collate, shared memory, queue, and nothing else."""

    batch_size: int
    batch_bytes: int
    arrays: int
    """Tensors in a batch: each crosses by itself."""
    batches: int
    """That were timed."""
    batch_s: float
    """From one batch to the next."""
    main_cpu_s: float
    """Of it, computing in the process that trains. Goes to every batch, however many workers there are."""
    seconds: float

    @property
    def samples_per_s(self) -> float:
        """The most that one worker can pass on, if its samples cost nothing."""
        return self.batch_size / self.batch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRates:
    """Host to device, a whole batch at a time."""

    device: str
    batch_bytes: int
    pinned_s: float
    """Seconds per batch."""
    pageable_s: float
    seconds: float

    @property
    def pinned_bytes_per_s(self) -> float:
        """From pinned memory, as `pin_memory=True` has it."""
        return self.batch_bytes / self.pinned_s

    @property
    def pageable_bytes_per_s(self) -> float:
        """From ordinary memory."""
        return self.batch_bytes / self.pageable_s


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean of some steps in a row."""

    steps: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProbe:
    """The training step alone: what would be left of a run if data cost nothing."""

    alone: StepTime
    """On an idle machine, which no training has."""
    beside: StepTime
    """While other processes keep the cores busy, as workers would. This one is to be planned with."""
    burners: int
    """How many did."""
    samples: int | None
    """In the batch; None where it does not tell."""
    device: str
    """Whose clock it is: "cuda" or "cpu"."""

    @property
    def step_s(self) -> float:
        """Beside the load."""
        return self.beside.step_s

    @property
    def samples_per_s(self) -> float | None:
        """No loader can make the training faster than this."""
        return None if self.samples is None else self.samples / self.step_s

    @property
    def slowdown(self) -> float:
        """What busy cores cost the step: 1.2 is a fifth."""
        return self.beside.step_s / self.alone.step_s

    def __str__(self) -> str:
        rate = "" if self.samples_per_s is None else f": at most {self.samples_per_s:,.0f} samples/s"
        return (
            f"{self.step_s * 1e3:.3g} ms a step beside {self.burners} busy processes "
            f"({self.alone.step_s * 1e3:.3g} ms alone){rate}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """All that were asked for; None where one was not."""

    storage: StorageProbe | SkippedProbe | None = None
    decode: DecodeRates | SkippedProbe | None = None
    handover: IpcCost | SkippedProbe | None = None
    copy: CopyRates | SkippedProbe | None = None
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether there is a number at all."""
        results = (self.storage, self.decode, self.handover, self.copy)
        return any(result is not None and not isinstance(result, SkippedProbe) for result in results)


MAX_BYTES = 1 << 20
"""A file larger than this is something else."""
NAMES = ("storage", "decode", "handover", "copy")
_MAKE = "`penstock probe all SHARDS --json > probes.json` makes one"

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedValues:
    """Measurements that are there; None where one is not."""

    curve: StorageCurve | None = None
    decode: DecodeRates | None = None
    handover: IpcCost | None = None
    copy: CopyRates | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why one is not, by its name, where the probe said so."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """Of the machine that was measured."""


def probes_document(probes: Probes, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """As plain values, with the machine they are of."""
    document: dict[str, Any] = msgspec.to_builtins(probes, enc_hook=str)
    return {**document, "fingerprint": dict(fingerprint)}


def read_probes(path: str | os.PathLike[str]) -> ProbedValues:
    """A SettingError names the file and what is wrong with it."""
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingError(f"{name}: cannot be read: {reason}") from error
    try:
        return _probed(data)
    except SettingError as error:
        raise SettingError(f"{name}: {error.reason}", advice=error.advice or _MAKE) from error


def _probed(data: bytes) -> ProbedValues:
    try:
        document = msgspec.json.decode(data) if len(data) <= MAX_BYTES else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict) or not document.keys() & set(NAMES):
        raise SettingError("holds no probes")
    sections = {name: document.get(name) for name in NAMES}
    reasons = {name: reason for name, section in sections.items() if (reason := _skipped(section)) is not None}
    there = {name: None if name in reasons else section for name, section in sections.items()}
    storage = there["storage"]
    marked = document.get("fingerprint")
    return ProbedValues(
        curve=_read("storage.curve", storage.get("curve") if isinstance(storage, dict) else storage, StorageCurve),
        decode=_read("decode", there["decode"], DecodeRates),
        handover=_read("handover", there["handover"], IpcCost),
        copy=_read("copy", there["copy"], CopyRates),
        reasons=reasons,
        fingerprint=marked if isinstance(marked, dict) else {},
    )


def _skipped(section: Any) -> str | None:
    """Why; None where it was not."""
    return str(section["reason"]) if isinstance(section, dict) and section.keys() == {"reason"} else None


def _read(place: str, section: Any, kind: type[Kind]) -> Kind | None:
    if section is None:
        return None
    try:
        return msgspec.convert(section, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise SettingError(f"{place}: {error}") from None
