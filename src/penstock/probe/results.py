"""Results of the probes, and the JSON file that carries them from `penstock probe --json` to `penstock plan --probes`.

The names of numbers end in their unit. A probe that could not run gives a `SkippedProbe` with the reason.
"""

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
    """The reason why a probe gave no result."""

    reason: str


@dataclass(frozen=True, slots=True)
class StorageProbe:
    """The storage that a path is on, and its measured curve."""

    storage: StorageFacts
    curve: StorageCurve


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """The decode rate of some workers, all together."""

    workers: int
    samples_per_s: float
    cpu_s_per_sample: float
    """CPU seconds per sample. They grow with the workers if these share caches, memory bandwidth or physical cores."""

    @property
    def cores_per_worker(self) -> float:
        """The share of a core that a worker got: less than 1 if other programs compute too, or a CPU quota applies."""
        return self.samples_per_s * self.cpu_s_per_sample / self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRates:
    """The rates of decoding samples from memory, without storage and without IPC."""

    points: tuple[DecodePoint, ...]
    """One per number of workers, the fewest first; larger numbers are missing where the time was used up."""
    sample_bytes: float
    """Mean encoded size of the decoded parts of a sample."""
    decoded_bytes: int
    """Size of one decoded sample in a batch."""
    samples: int
    """Number of different samples, which were decoded over and over."""
    bad: int
    """Number of samples that were left out because they did not decode."""
    source: str
    """The origin of the samples, in words."""
    seconds: float

    @property
    def cpu_s_per_sample(self) -> float:
        """CPU seconds per sample with the fewest workers that were measured."""
        return self.points[0].cpu_s_per_sample

    @property
    def best(self) -> DecodePoint:
        """The point with the highest rate."""
        return max(self.points, key=lambda point: point.samples_per_s)

    def scaling(self, point: DecodePoint) -> float:
        """Return the rate per worker of a point, divided by that of the first point: 1 is perfect scaling."""
        first = self.points[0]
        return point.samples_per_s / point.workers / (first.samples_per_s / first.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcCost:
    """The cost of moving batches from one worker of torch's DataLoader to the training loop.

    Measured with constant samples, so it consists of collating, shared memory and the queue only.
    """

    batch_size: int
    batch_bytes: int
    arrays: int
    """Tensors in a batch; each is transferred by itself."""
    batches: int
    """Number of batches that were timed."""
    batch_s: float
    """Seconds from one batch to the next."""
    main_cpu_s: float
    """CPU seconds of the training process per batch, whatever the number of workers."""
    seconds: float

    @property
    def samples_per_s(self) -> float:
        """The highest rate that one worker can deliver, if making its samples costs nothing."""
        return self.batch_size / self.batch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRates:
    """The times of copying a whole batch from the host to the device."""

    device: str
    batch_bytes: int
    pinned_s: float
    """Seconds per batch from pinned memory."""
    pageable_s: float
    """Seconds per batch from ordinary memory."""
    seconds: float

    @property
    def pinned_bytes_per_s(self) -> float:
        """The rate from pinned memory, as with `pin_memory=True`."""
        return self.batch_bytes / self.pinned_s

    @property
    def pageable_bytes_per_s(self) -> float:
        """The rate from ordinary memory."""
        return self.batch_bytes / self.pageable_s


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean time of some consecutive steps."""

    steps: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProbe:
    """The time of the training step alone, which would remain if loading data cost nothing."""

    alone: StepTime
    """The step on an otherwise idle machine, which no real training has."""
    beside: StepTime
    """The step while other processes keep the cores busy, as workers would. Plans use this one."""
    burners: int
    """Number of those busy processes."""
    samples: int | None
    """Samples in the batch; None where the batch does not show it."""
    device: str
    """The clock that timed the steps: "cuda" or "cpu"."""

    @property
    def step_s(self) -> float:
        """Seconds per step beside the busy processes."""
        return self.beside.step_s

    @property
    def samples_per_s(self) -> float | None:
        """The rate that no loader can exceed."""
        return None if self.samples is None else self.samples / self.step_s

    @property
    def slowdown(self) -> float:
        """The step's time beside busy processes divided by its time alone: 1.2 is 20% longer."""
        return self.beside.step_s / self.alone.step_s

    def __str__(self) -> str:
        rate = "" if self.samples_per_s is None else f": at most {self.samples_per_s:,.0f} samples/s"
        return (
            f"{self.step_s * 1e3:.3g} ms a step beside {self.burners} busy processes "
            f"({self.alone.step_s * 1e3:.3g} ms alone){rate}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptProbe:
    """The measurements of `penstock run --probe compute` in a script; None for what was not measured."""

    data: StepTime | None = None
    """The step with the script's own data, waiting included."""
    alone: StepTime | None = None
    beside: StepTime | None = None
    burners: int = 0
    samples: int | None = None
    """Samples in a batch."""
    device: str = "cpu"
    why: str = ""
    """Why a measurement is missing, where the probe itself recorded the reason."""

    @property
    def step(self) -> StepProbe | None:
        """The same as `penstock.probe_step` would give; None if a measurement is missing."""
        if self.alone is None or self.beside is None:
            return None
        return StepProbe(
            alone=self.alone, beside=self.beside, burners=self.burners, samples=self.samples, device=self.device
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The results of all requested probes; None for a probe that was not requested."""

    storage: StorageProbe | SkippedProbe | None = None
    decode: DecodeRates | SkippedProbe | None = None
    ipc: IpcCost | SkippedProbe | None = None
    copy: CopyRates | SkippedProbe | None = None
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether at least one probe gave a number."""
        results = (self.storage, self.decode, self.ipc, self.copy)
        return any(result is not None and not isinstance(result, SkippedProbe) for result in results)


# -- the file ------------------------------------------------------------------------------------------------------

MAX_BYTES = 1 << 20
"""A larger file was not written by a probe."""
NAMES = ("storage", "decode", "ipc", "copy")
OLD_NAMES = {"handover": "ipc"}  # glossary: allow
"""Keys in files of earlier versions, with the present name."""
_HOW_TO_MAKE = "`penstock probe all SHARDS --json > probes.json` makes one"

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedValues:
    """The measurements that a file of probe results contains; None where one is missing."""

    curve: StorageCurve | None = None
    decode: DecodeRates | None = None
    ipc: IpcCost | None = None
    copy: CopyRates | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The reason why a measurement is missing, by the probe's name, where the file contains one."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """Identifies the machine that was measured."""


def probes_document(probes: Probes, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results as plain values for JSON, with the fingerprint of the machine."""
    document: dict[str, Any] = msgspec.to_builtins(probes, enc_hook=str)
    return {**document, "fingerprint": dict(fingerprint)}


def read_probes(path: str | os.PathLike[str]) -> ProbedValues:
    """Read a file of probe results; raise a SettingError that names the file and what is wrong with it."""
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingError(f"{name}: cannot be read: {reason}") from error
    try:
        return _parse(data)
    except SettingError as error:
        raise SettingError(f"{name}: {error.reason}", advice=error.advice or _HOW_TO_MAKE) from error


def _parse(data: bytes) -> ProbedValues:
    try:
        document = msgspec.json.decode(data) if len(data) <= MAX_BYTES else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        document = None
    if isinstance(document, dict):
        document = {OLD_NAMES.get(name, name): section for name, section in document.items()}
    if not isinstance(document, dict) or not document.keys() & set(NAMES):
        raise SettingError("holds no probes")
    sections = {name: document.get(name) for name in NAMES}
    reasons = {name: reason for name, section in sections.items() if (reason := _skip_reason(section)) is not None}
    results = {name: None if name in reasons else section for name, section in sections.items()}
    storage = results["storage"]
    fingerprint = document.get("fingerprint")
    return ProbedValues(
        curve=_read("storage.curve", storage.get("curve") if isinstance(storage, dict) else storage, StorageCurve),
        decode=_read("decode", results["decode"], DecodeRates),
        ipc=_read("ipc", results["ipc"], IpcCost),
        copy=_read("copy", results["copy"], CopyRates),
        reasons=reasons,
        fingerprint=fingerprint if isinstance(fingerprint, dict) else {},
    )


def _skip_reason(section: Any) -> str | None:
    """Return why a probe was skipped, or None if the section is a result."""
    return str(section["reason"]) if isinstance(section, dict) and section.keys() == {"reason"} else None


def _read(place: str, section: Any, kind: type[Kind]) -> Kind | None:
    if section is None:
        return None
    try:
        return msgspec.convert(section, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise SettingError(f"{place}: {error}") from None
