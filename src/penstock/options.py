"""What a user may set on a loader, grouped by who owns it. Frozen, checked at birth, each default explained."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from penstock.errors import SettingError


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How samples are put together."""

    batch_size: int | None
    """None where a batch_sampler decides."""
    drop_last: bool = False
    device: str = "cpu"
    """Where batches are delivered; "numpy" for arrays, without torch."""

    def __post_init__(self) -> None:
        _check_count("batch_size", self.batch_size)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How much is done at a time. What is None is decided, and may be changed while running; what is set stays."""

    executor: Literal["auto", "process", "thread"] = "auto"
    workers: int | None = None
    """Decoding at a time; as many as there are cores, less one where there are more than four; 8 to begin with."""
    readers: int | None = None
    """Reads in flight; starts at 4 and follows what the storage makes of it."""
    memory_bytes: int | None = None
    """For arena, slabs and workers together; a quarter of what is free."""
    timeout_s: float = 120.0
    """A sample that takes longer is stuck: its worker's stack is printed and the worker replaced."""
    pin_workers: bool = False
    """Each worker process to a core of its own, near our memory first: for machines that run nothing else."""
    page_cache: bool | None = None
    """Whether shards are read through the kernel's page cache; as long as they take less than half the free memory."""

    def __post_init__(self) -> None:
        if self.executor not in ("auto", "process", "thread"):
            raise SettingError(f"executor {self.executor!r} is not known", advice="Use auto, process or thread")
        for name in ("workers", "readers", "memory_bytes"):
            _check_count(name, getattr(self, name))
        if not self.timeout_s > 0:  # so put, NaN is refused too
            raise SettingError(f"timeout_s={self.timeout_s} is not above 0")


@dataclass(frozen=True, slots=True)
class ErrorSettings:
    """What happens to bad samples."""

    on_error: Literal["raise", "skip", "replace"] = "raise"
    """raise ends the epoch; skip makes the batch smaller; replace puts the next good sample of the batch there."""
    max_bad: float = 0.01
    """Above this share of bad samples, skipping and replacing end the epoch too: something larger is wrong."""
    ledger: str | None = None
    """Where bad samples are listed, as JSON lines."""

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip", "replace"):
            raise SettingError(f"on_error {self.on_error!r} is not known", advice="Use raise, skip or replace")
        if not 0 <= self.max_bad <= 1:
            raise SettingError(f"max_bad={self.max_bad} is not a share between 0 and 1")


def _check_count(name: str, value: object) -> None:
    """A whole number above 0, numpy's too, or None. A bool is a whole number to Python, and to nobody else."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingError(f"{name}={value!r} is not a whole number")
    if value < 1:
        raise SettingError(f"{name}={value} is not above 0")
