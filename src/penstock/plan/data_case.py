"""A run whose data could be otherwise: its causes, its amounts, and what copying or packing it would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan

from penstock.core.format import format_bytes
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Suspect
from penstock.diagnose.verdict import ENOUGH_STEPS, LEAST_STRENGTH, MOST_GAIN, all_rules
from penstock.model.workload import Workload, gain
from penstock.plan.predict import thinned

CPU_CAUSES = ("decode_bound", "cpu_quota")
"""Causes that samples which are cheaper to make would cure."""
STORAGE_CAUSES = ("storage_bandwidth", "random_access", "reader_thrash", "latency_bound", "cache_miss")
"""Causes that a disk without them would cure."""
BYTES_WAITED = ("read", "open", "network")
"""States of a worker that waits for its data."""


@dataclass(frozen=True)
class DataCase:
    """A run with its causes, and the amounts that costs are made of."""

    evidence: Evidence
    workload: Workload
    causes: frozenset[str]

    @property
    def cpu(self) -> bool:
        """Whether making samples fills the cores."""
        return not self.causes.isdisjoint(CPU_CAUSES)

    @property
    def storage(self) -> bool:
        """Whether workers wait for bytes."""
        return not self.causes.isdisjoint(STORAGE_CAUSES)

    @property
    def read_share(self) -> float:
        """Of the workers' waiting, for data."""
        return self.evidence.blocked_in(*BYTES_WAITED)

    @property
    def batch_bytes(self) -> float:
        """Read for a batch, on average; 0 where nobody could count."""
        return self.evidence.mean([fetch.read_bytes for fetch in self.evidence.fetches])

    @property
    def bytes_s(self) -> float:
        """Read per second, by all workers."""
        return self.batch_bytes / self.evidence.cycle_s if self.evidence.cycle_s > 0 else 0.0

    @property
    def samples(self) -> float | None:
        """Of the dataset, or of an epoch; None where nobody knows."""
        loader, per_batch = self.evidence.loader, self.evidence.samples_per_batch
        if loader.dataset_size is not None:
            return float(loader.dataset_size)
        return None if loader.batches is None or isnan(per_batch) else loader.batches * per_batch

    @property
    def size_bytes(self) -> float | None:
        """Of the data that an epoch reads; None where it is not known."""
        per_batch = self.evidence.samples_per_batch
        if self.samples is None or isnan(per_batch) or not self.batch_bytes:
            return None
        return self.samples * self.batch_bytes / per_batch

    def seen_in(self, packages: frozenset[str]) -> float:
        """Share of the looks at workers that found them in these packages."""
        shares = self.evidence.functions(main=False).items()
        return sum(share for function, share in shares if _package(function, packages))

    # -- what it takes ------------------------------------------------------------------------------------------

    def cost_of_packing(self) -> str:
        """Every sample is made once more, as fast as the run made them."""
        per_batch, cycle_s = self.evidence.samples_per_batch, self.evidence.cycle_s
        words = []
        if self.size_bytes is not None:
            words.append(f"up to {format_bytes(self.size_bytes)} written once")
        if self.samples is not None and not isnan(per_batch) and cycle_s > 0:
            rate = per_batch / cycle_s
            words.append(f"about {_hours(self.samples / rate)} at the measured {rate:,.0f} samples/s")
        return ", ".join(words) or "the data once more on disk; how much that is was not seen"

    def cost_of_copying(self) -> str:
        """Every byte is read once more, as fast as the run read them."""
        if self.size_bytes is None:
            return "the data once more on that disk; how much that is was not seen"
        took = _hours(self.size_bytes / self.bytes_s)
        return f"{format_bytes(self.size_bytes)} on that disk, {took} at the measured {self.bytes_s / 1e6:,.0f} MB/s"


def _package(function: str, packages: frozenset[str]) -> bool:
    """Whether `module:name` belongs to one of them."""
    module = function.partition(":")[0]
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _hours(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def causes(evidence: Evidence, *rules: str) -> dict[str, Suspect]:
    """Of these rules, those that suspect their cause as strongly as a finding must; none where steps are too few."""
    if len(evidence.steps) < ENOUGH_STEPS:
        return {}
    answers = {name: all_rules()[name](evidence) for name in rules}
    return {
        name: answer
        for name, answer in answers.items()
        if isinstance(answer, Suspect) and answer.strength >= LEAST_STRENGTH
    }


def model_gain(workload: Workload, edit: Callable[[Workload], Workload]) -> float:
    """More samples per second of the edited run; a hundredfold at most, as in a diagnosis."""
    run = thinned(workload)
    return min(gain(run, edit(run)), MOST_GAIN)
