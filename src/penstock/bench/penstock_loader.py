"""The contestant of this house: `penstock.Loader` as it comes, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch  # noqa: F401  (the loader imports it with the first batch; imports are not raced)

from penstock.bench.race import OURS_NAME
from penstock.bench.trial import measure, print_trial
from penstock.bench.workload import BenchmarkWorkload, load_workload
from penstock.core.cores import usable_cores
from penstock.loader import Loader


def batches(course: BenchmarkWorkload) -> Iterable[dict[str, Any]]:
    """One epoch, all settings at their defaults."""
    fields = {field.name: field.declared() for field in course.fields}
    return Loader(course.shards, fields, course.batch_size)


def main(course_path: str) -> None:
    """Run once and print the trial."""
    course = load_workload(course_path)
    print_trial(measure(OURS_NAME, usable_cores(), lambda: batches(course), lambda batch: list(batch["__key__"])))


if __name__ == "__main__":
    main(sys.argv[1])
