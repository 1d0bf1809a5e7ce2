"""One training, watched and recorded, in a process of its own; the last line it prints is what it took.

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
"""The faults are sized for a small machine; on a larger one they get as much of it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--folder", type=Path, required=True, help="where the data lies, or is made")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--severity", choices=("mild", "severe"), default="severe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--removed", action="store_true", help="the same training without the fault")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores: on purpose
    case = Case(folder=asked.folder, seed=asked.seed, severity=asked.severity, removed=asked.removed, steps=asked.steps)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with FAULTS[asked.fault].build(case) as training:
        outcome = _watched(training, asked.record)
        if not asked.removed:
            add_storage_recheck(asked.record)  # while the disk is still as it was
    print(msgspec.json.encode(outcome).decode(), flush=True)


def _watched(training: Training, record: Path) -> Outcome:
    """With all that `penstock run` puts into the process of a script."""
    watching = WatchedRun(record)
    undo = install(watching)
    try:
        return training.run()
    finally:
        undo()
        watching.close()


if __name__ == "__main__":
    main()
