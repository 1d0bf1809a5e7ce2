"""What one rank of a training asks for, as measured on one node: every plan for many begins here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, Self

import numpy as np

from penstock.data.order.blocks import BLOCK_BYTES
from penstock.errors import SettingError
from penstock.model.simulation_input import Floats
from penstock.model.workload import Workload
from penstock.plan.data_changes import QUARTER

ALREADY = 1.5
"""Times the requests that blocks would take: a run that makes no more than so many reads in blocks already."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RankNeed:
    """Of one rank, batch by batch: seconds with nobody in the way."""

    source: Literal["recording", "probes"]
    samples_per_batch: float
    cpu_s: Floats
    """Making a batch, on a core."""
    waited_s: Floats
    """Making a batch, in anything but computing: bytes that come, mostly."""
    step_s: Floats
    """Of the loop, taking the batch over included."""
    step_cpu_s: Floats
    """Of it, on a core."""
    batch_bytes: float | None
    """Read for a batch; None where nobody could count."""
    batch_requests: float | None
    workers: int
    prefetch: int
    cores: float
    """Of the node that was measured."""
    samples: float | None = None
    """Of an epoch; None where it is not known."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.samples_per_batch < inf:
            raise SettingError("how many samples a batch has is not known, so nothing can be counted")
        if not self.step_s.mean() > 0:
            raise SettingError(
                "a step that takes no time asks for any amount of data", advice="Record a training that computes"
            )

    @classmethod
    def of(cls, workload: Workload, **told: Any) -> Self:
        """Of a run as the model takes it. A lock is the rank's own, so waiting for it is waiting."""
        return cls(
            cpu_s=workload.cpu_s,
            waited_s=workload.alone_s + workload.io_s + workload.serial_s,
            step_s=workload.step_s + workload.handover_s,
            step_cpu_s=workload.step_cpu_s + workload.handover_s,
            workers=workload.workers,
            prefetch=workload.prefetch,
            cores=workload.cores,
            **told,
        )

    @property
    def sample_bytes(self) -> float | None:
        """Read for a sample."""
        return None if self.batch_bytes is None else self.batch_bytes / self.samples_per_batch

    @property
    def dataset_bytes(self) -> float | None:
        """Of all that an epoch reads; None where it is not known."""
        return None if self.samples is None or self.sample_bytes is None else self.samples * self.sample_bytes

    @property
    def computing_s(self) -> float:
        """On a core, for a batch: making it, taking it over, and the step's own."""
        return float(self.cpu_s.mean() + self.step_cpu_s.mean())

    def with_dataset(self, size_bytes: float) -> Self:
        """Of a dataset that large, with samples like these."""
        if self.sample_bytes is None:
            raise SettingError(
                "bytes were not counted, so how many samples a dataset has does not follow from its size"
            )
        return replace(self, samples=size_bytes / self.sample_bytes)


# -- what packing would change ---------------------------------------------------------------------------------------


def in_blocks(need: RankNeed) -> RankNeed | None:
    """The same bytes in shards that are read block by block; None where that would be nothing new, or is not known.

    Waiting is taken to go with the number of requests, as it does where each has its latency.
    """
    if need.batch_bytes is None or need.batch_requests is None:
        return None
    blocks = need.batch_bytes / BLOCK_BYTES
    if need.batch_requests <= ALREADY * blocks:
        return None
    return replace(need, batch_requests=blocks, waited_s=need.waited_s * (blocks / need.batch_requests))


def half_the_side(need: RankNeed) -> RankNeed | None:
    """Pictures packed at half the side: a quarter of the pixels, of the bytes and of the time to decode."""
    if need.batch_bytes is None:
        return None
    packed = in_blocks(need) or need
    requests = None if packed.batch_requests is None else packed.batch_requests * QUARTER
    return replace(
        packed,
        batch_bytes=need.batch_bytes * QUARTER,
        batch_requests=requests,
        cpu_s=packed.cpu_s * QUARTER,
        waited_s=packed.waited_s * QUARTER,
    )


def expected_most(seconds: Floats, ranks: int) -> float:
    """The mean of the longest of so many draws from what was seen: no draw is longer than the longest seen."""
    ranked = np.sort(seconds)
    share = (np.arange(len(ranked) + 1) / len(ranked)) ** ranks
    return float((ranked * np.diff(share)).sum())
