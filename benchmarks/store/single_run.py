"""Runs one loader once, in a process of its own; the last line of its output is the result.

`python -m benchmarks.store.single_run http://127.0.0.1:5000 --loader webdataset --workers 2`
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from importlib import import_module

from benchmarks.peers.task import Batch, MakeBatches, checked_keys, content_digest
from benchmarks.store.objects import FULL, QUICK
from benchmarks.store.task import AGREED, Task
from penstock.bench.loader_run import measure, print_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint")
    parser.add_argument("--loader", required=True, help="a module of benchmarks.store.loaders")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--quick", action="store_true", help="read only a few samples")
    parser.add_argument("--prepare", action="store_true", help="only make what this loader makes once for a dataset")
    parser.add_argument(
        "--contents", action="store_true", help="print a digest of all delivered values instead of times"
    )
    options = parser.parse_args()
    task = Task(options.endpoint, QUICK if options.quick else FULL, options.workers)
    os.environ |= task.environment
    make_batches: MakeBatches = import_module(f"benchmarks.store.loaders.{options.loader}").prepare(task)
    if options.contents:
        print(content_digest(AGREED, make_batches()), flush=True)
    elif not options.prepare:
        keys_of = _keys_of_plain_reads if options.loader == "plain" else partial(checked_keys, AGREED)
        print_run(measure(options.loader, options.workers, make_batches, keys_of))


def _keys_of_plain_reads(batch: Batch) -> list[str]:
    return list(batch["__key__"])


if __name__ == "__main__":
    main()
