"""The module that runs `penstock.Loader` with its defaults in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch  # noqa: F401  (the loader imports it with the first batch, but imports are not timed)

from penstock.bench.loader_run import measure, print_run
from penstock.bench.side_by_side import PENSTOCK_NAME
from penstock.bench.workload import BenchmarkWorkload, load_workload
from penstock.core.cores import usable_cores
from penstock.loader import Loader


def batches(workload: BenchmarkWorkload) -> Iterable[dict[str, Any]]:
    """Return a loader of one epoch with all settings at their defaults."""
    fields = {field.name: field.declared() for field in workload.fields}
    return Loader(workload.shards, fields, workload.batch_size)


def main(workload_file: str) -> None:
    """Run the loader once and print the result."""
    workload = load_workload(workload_file)
    print_run(measure(PENSTOCK_NAME, usable_cores(), lambda: batches(workload), lambda batch: list(batch["__key__"])))


if __name__ == "__main__":
    main(sys.argv[1])
