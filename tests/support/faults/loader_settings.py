"""Faults in the settings of the loader: no workers, too few workers, or workers that are started for every epoch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.image_dataset import SIDE, WORKERS, Decode, ImageDataset, image_dataset, jpeg, loader

EPOCH_BATCHES = 20
"""Batches of an epoch in `short_epochs`."""


@fault(expect="no_overlap")
def no_workers(case: Case) -> Iterator[Training]:
    """The training loop makes the batches itself, between the steps."""
    workers = WORKERS if case.removed else 0
    yield Training(loader=loader(_decoding_dataset(case, mild=0.001, severe=0.002), num_workers=workers))


@fault(expect="too_few_workers")
def one_worker(case: Case) -> Iterator[Training]:
    """One worker decodes as fast as it can, while another core is idle."""
    workers = WORKERS if case.removed else 1
    yield Training(loader=loader(_decoding_dataset(case, mild=0.0016, severe=0.003), num_workers=workers))


@fault(expect="worker_startup")
def short_epochs(case: Case) -> Iterator[Training]:
    """Workers are started anew for each short epoch, and each begins by parsing an index."""
    start = ParseIndex(case.level(mild=0.15, severe=0.4))
    epochs = max(1, case.steps // EPOCH_BATCHES)
    dataset = image_dataset(replace(case, steps=case.steps // epochs))
    yield Training(loader=loader(dataset, persistent_workers=case.removed, worker_init_fn=start), epochs=epochs)


def _decoding_dataset(case: Case, mild: float, severe: float) -> ImageDataset:
    """Return a dataset with CPU work per sample, in seconds, that is the same with and without the fault."""
    return image_dataset(case, Decode(jpeg(SIDE, case.seed), case.level(mild=mild, severe=severe)))


@dataclass(frozen=True, slots=True)
class ParseIndex:
    """A worker_init_fn that parses a large index in JSON for `cpu_s` seconds of CPU time."""

    cpu_s: float

    def __call__(self, worker: int) -> None:
        text = json.dumps([{"key": f"{number:09d}", "offset": number * 512} for number in range(10_000)])
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            json.loads(text)
