"""What is done in a fresh process: one setting measured, one run recorded, one load tuned."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.faults import Training

import penstock
from benchmarks.faults.single_run import _watched
from benchmarks.plan.loads import LOADS
from penstock.core.clock import SYSTEM_CLOCK
from penstock.tuner.measure import measure_rate
from penstock.tuner.result import TuningFindings, WorkerSettings
from penstock.tuner.trials import suppress_torch_warnings
from penstock.watcher.machine.storage_recheck import add_storage_recheck

PATIENCE_S = 60.0
"""Most settings have found their rhythm long before; of others what came until then is counted."""
LEAST_BATCHES = 60
"""Of a recording: fewer are no run."""


def measured(name: str, setting: WorkerSettings, folder: Path, seconds: float) -> float:
    """Samples per second of a plain loop, its warm-up (W·P batches) left out, over whole rounds of the workers."""
    load = LOADS[name]
    with suppress_torch_warnings(), load.open(folder, setting) as loader:
        until_s = SYSTEM_CLOCK.now() + PATIENCE_S
        return measure_rate(loader, load.step, seconds=seconds, until_s=until_s).batches_s * load.batch_size


def recorded(name: str, folder: Path, record: Path, seconds: float) -> None:
    """The training as `penstock run` would watch it, under the one setting it is recorded with."""
    load = LOADS[name]
    with suppress_torch_warnings(), load.open(folder, load.recorded) as loader:
        _watched(Training(loader=_lasting(loader, seconds), step=load.step), record)
        add_storage_recheck(record)  # while the disk is still as it was


def tuned(name: str, folder: Path, seconds: float) -> TuningFindings:
    """By `penstock.tune` with the load's own step; nothing is remembered from before."""
    load = LOADS[name]
    with TemporaryDirectory(dir=folder) as cache, load.open(folder, WorkerSettings()) as loader:
        os.environ["PENSTOCK_CACHE"] = cache
        return penstock.tune(loader.dataset, batch_size=load.batch_size, step=load.step, seconds=seconds).findings()


def _lasting(loader: Iterable[Any], seconds: float) -> Iterator[Any]:
    until_s = SYSTEM_CLOCK.now() + seconds
    for number, batch in enumerate(loader, 1):
        yield batch
        if number >= LEAST_BATCHES and SYSTEM_CLOCK.now() >= until_s:
            return
