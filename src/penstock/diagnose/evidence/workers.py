"""The workers: what each batch took, and where they were seen meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np

from penstock.diagnose.evidence.loop import LoopEvidence
from penstock.diagnose.evidence.settings import Floats, Ints
from penstock.recording.format import StackSamplesLine

OF_THREADS = ("threading:", "queue:", "concurrent.futures")
"""Modules whose functions wait for other threads."""


class WorkerEvidence(LoopEvidence):
    """Fetches as arrays, one number for each batch; looks at workers and loop as shares."""

    @cached_property
    def fetch_s(self) -> Floats:
        """What a batch takes its worker."""
        return np.array([fetch.fetch_s for fetch in self.fetches])

    @cached_property
    def cpu_s(self) -> Floats:
        """Of it, computing."""
        return np.array([fetch.cpu_s for fetch in self.fetches])

    @cached_property
    def queue_s(self) -> Floats:
        """Of it, ready to run without a core."""
        return np.array([fetch.queue_s for fetch in self.fetches])

    @cached_property
    def gc_s(self) -> Floats:
        """Of it, in the garbage collector; clocks are read at different moments, a part is no more than the whole."""
        return np.minimum([fetch.gc_s for fetch in self.fetches], self.cpu_s)

    @cached_property
    def blocked_s(self) -> Floats:
        """Of it, waiting for something else: storage, network, a lock, a timer."""
        return np.maximum(self.fetch_s - self.cpu_s - self.queue_s, 0.0)

    @cached_property
    def collate_s(self) -> Floats:
        """Of it, putting samples together; clocks are read at different moments, a part is no more than the whole."""
        return np.array([min(fetch.collate_s, fetch.fetch_s) for fetch in self.fetches])

    @cached_property
    def by(self) -> Ints:
        """Who made it."""
        return np.array([fetch.worker for fetch in self.fetches], np.int64)

    @cached_property
    def dealt_workers(self) -> int:
        """As many as could have made these batches had each made as many as the busiest: others had less to do.

        Where the dataset deals its samples to the workers itself, that may be fewer than there are.
        """
        counts = np.unique(self.by[self.by >= 0], return_counts=True)[1]
        if self.workers < 2 or self.loader.dataset_size is not None or not len(counts):
            return self.workers
        return max(1, min(self.workers, int(counts.sum() / counts.max() + 0.15)))

    @cached_property
    def mean_fetch_s(self) -> float:
        """Of a batch."""
        return self.mean(self.fetch_s)

    def share_of_fetch(self, seconds: Floats) -> float:
        """Of the workers' time."""
        total = float(self.fetch_s.sum())
        return float(seconds.sum()) / total if total > 0 else 0.0

    @cached_property
    def making(self) -> float:
        """Share of the workers' time in which they made batches, by the utilisation law."""
        return self.mean_fetch_s / (max(1, self.workers) * self.cycle_s) if self.cycle_s > 0 else 0.0

    @cached_property
    def decode_cores(self) -> float:
        """Cores the workers kept busy with making batches."""
        return float(self.cpu_s.sum()) / self.steady_s if self.steady_s > 0 else 0.0

    @cached_property
    def states(self) -> dict[str, float]:
        """Shares of the workers' time while making batches, by what they were in: see lines.Whereabouts.

        A lock of Python's own is no other worker's: who stands in one waits for "threads" of the same process.
        """
        states = _shares(line.states for line in self._looks(main=False))
        own = sum(share for name, share in self.functions(main=False).items() if name.startswith(OF_THREADS))
        if "lock" in states and own >= states["lock"] / 2:
            states["threads"] = states.pop("lock")
        return states

    def blocked_in(self, *states: str) -> float:
        """Share of the workers' blocked time spent in these states: running is not blocked."""
        blocked = {state: share for state, share in self.states.items() if state != "running"}
        total = sum(blocked.values())
        return sum(blocked.get(state, 0.0) for state in states) / total if total > 0 else 0.0

    @cached_property
    def main_states(self) -> dict[str, float]:
        """The same for the training loop's thread, outside the loader."""
        return _shares(line.states for line in self._looks(main=True))

    def functions(self, *, main: bool) -> dict[str, float]:
        """Shares by innermost function, most frequent first."""
        shares = _shares(line.functions for line in self._looks(main=main))
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def _looks(self, *, main: bool) -> Iterator[StackSamplesLine]:
        """At the training loop's thread, or at this loader's workers."""
        for line in self.recording.whereabouts:
            if (line.worker is None) == main and (main or line.loader == self.loader.loader):
                yield line


def _shares(counts: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """Of all looks together, by name."""
    together: Counter[str] = Counter()
    for each in counts:
        together.update(each)
    total = together.total()
    return {name: count / total for name, count in together.items()} if total else {}
