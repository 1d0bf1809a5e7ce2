"""One watched and recorded training, in a process of its own, which prints its steps and seconds as JSON at its end.

`python -m benchmarks.faults.single_run slow_worker --folder DATA --record run.jsonl --severity mild --seed 0`
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import msgspec
from tests.support.faults import FAULTS, STEPS, Case, Outcome, Training

from penstock.watcher.hooks import install
from penstock.watcher.machine.storage_recheck import add_storage_recheck
from penstock.watcher.start import WatchedRun

CORES = 2
"""Cores that the training may use: the faults are sized for a small machine."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the data; it is made if missing")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--severity", choices=("mild", "severe"), default="severe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--removed", action="store_true", help="the same training without the fault")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores on purpose
    case = Case(
        folder=options.folder,
        seed=options.seed,
        severity=options.severity,
        removed=options.removed,
        steps=options.steps,
    )
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with FAULTS[options.fault].build(case) as training:
        outcome = _run_watched(training, options.record)
        if not options.removed:
            add_storage_recheck(options.record)  # while the fault still slows the disk
    print(msgspec.json.encode(outcome).decode(), flush=True)


def _run_watched(training: Training, record: Path) -> Outcome:
    """Run the training with everything that `penstock run` adds to the process of a script."""
    watched_run = WatchedRun(record)
    uninstall = install(watched_run)
    try:
        return training.run()
    finally:
        uninstall()
        watched_run.close()


if __name__ == "__main__":
    main()
