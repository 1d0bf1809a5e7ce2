"""The loader is set up so that workers cannot do what they could."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.material import SIDE, WORKERS, Decode, Pictures, jpeg, loader, pictures

EPOCH = 20
"""Batches."""


@fault(expect="no_overlap")
def no_workers(case: Case) -> Iterator[Training]:
    """Batches are made by the loop itself, between the steps."""
    yield Training(loader=loader(_decoding(case, mild=0.001, severe=0.002), num_workers=WORKERS if case.removed else 0))


@fault(expect="too_few_workers")
def one_worker(case: Case) -> Iterator[Training]:
    """One worker decodes as fast as it can, and a core is free."""
    workers = WORKERS if case.removed else 1
    yield Training(loader=loader(_decoding(case, mild=0.0016, severe=0.003), num_workers=workers))


@fault(expect="worker_startup")
def short_epochs(case: Case) -> Iterator[Training]:
    """Workers are started anew for each short epoch, and each begins by parsing an index."""
    start = ParseIndex(case.level(mild=0.15, severe=0.4))
    passes = max(1, case.steps // EPOCH)
    epoch = pictures(replace(case, steps=case.steps // passes))
    yield Training(loader=loader(epoch, persistent_workers=case.removed, worker_init_fn=start), passes=passes)


def _decoding(case: Case, mild: float, severe: float) -> Pictures:
    """The work of a sample is the same with the fault and without."""
    return pictures(case, Decode(jpeg(SIDE, case.seed), case.level(mild=mild, severe=severe)))


@dataclass(frozen=True, slots=True)
class ParseIndex:
    """A large index, parsed by every worker that starts."""

    cpu_s: float

    def __call__(self, worker: int) -> None:
        """As a worker_init_fn."""
        text = json.dumps([{"key": f"{number:09d}", "offset": number * 512} for number in range(10_000)])
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            json.loads(text)
