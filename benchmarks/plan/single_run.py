"""The functions that run in a fresh process: measure one setting, record one run, tune one load."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.faults import Training

import penstock
from benchmarks.faults.single_run import _run_watched
from benchmarks.plan.loads import LOADS
from penstock.core.clock import SYSTEM_CLOCK
from penstock.tuner.measure import measure_rate
from penstock.tuner.result import TuningFindings, WorkerSettings
from penstock.tuner.trials import suppress_torch_warnings
from penstock.watcher.machine.storage_recheck import add_storage_recheck

MAX_MEASURE_S = 60.0
"""Seconds after which a measurement ends in any case. The warm-up of most settings is over long before; of the
others, the batches up to then count."""
MIN_BATCHES = 60
"""Smallest number of batches of a recording."""


def measure_setting(name: str, setting: WorkerSettings, folder: Path, seconds: float) -> float:
    """Return the samples per second of a plain loop, over whole windows of W batches.

    The warm-up of W·P batches is left out (W workers, prefetch factor P).
    """
    load = LOADS[name]
    with suppress_torch_warnings(), load.open(folder, setting) as loader:
        until_s = SYSTEM_CLOCK.now() + MAX_MEASURE_S
        return measure_rate(loader, load.step, seconds=seconds, until_s=until_s).batches_s * load.batch_size


def record_load(name: str, folder: Path, record: Path, seconds: float) -> None:
    """Record the training as `penstock run` does, with the setting for the recording."""
    load = LOADS[name]
    with suppress_torch_warnings(), load.open(folder, load.recorded) as loader:
        _run_watched(Training(loader=_run_for(loader, seconds), step=load.step), record)
        add_storage_recheck(record)  # while the disk that the load sets up still exists


def tune_load(name: str, folder: Path, seconds: float) -> TuningFindings:
    """Tune with `penstock.tune` and the load's own step; an empty cache hides the results of earlier runs."""
    load = LOADS[name]
    with TemporaryDirectory(dir=folder) as cache, load.open(folder, WorkerSettings()) as loader:
        os.environ["PENSTOCK_CACHE"] = cache
        return penstock.tune(loader.dataset, batch_size=load.batch_size, step=load.step, seconds=seconds).findings()


def _run_for(loader: Iterable[Any], seconds: float) -> Iterator[Any]:
    """Yield batches for so many seconds, but at least MIN_BATCHES."""
    until_s = SYSTEM_CLOCK.now() + seconds
    for number, batch in enumerate(loader, 1):
        yield batch
        if number >= MIN_BATCHES and SYSTEM_CLOCK.now() >= until_s:
            return
