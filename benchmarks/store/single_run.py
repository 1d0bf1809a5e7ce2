"""One run of one contestant, in a process of its own; the last line it prints is the result.

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
    parser.add_argument("--quick", action="store_true", help="a handful of samples")
    parser.add_argument("--prepare", action="store_true", help="only make what this contestant needs once")
    parser.add_argument("--contents", action="store_true", help="print a digest of all that was delivered, no times")
    asked = parser.parse_args()
    task = Task(asked.endpoint, QUICK if asked.quick else FULL, asked.workers)
    os.environ |= task.environment
    make_batches: MakeBatches = import_module(f"benchmarks.store.loaders.{asked.loader}").prepare(task)
    if asked.contents:
        print(content_digest(AGREED, make_batches()), flush=True)
    elif not asked.prepare:
        keys_of = _keys if asked.loader == "plain" else partial(checked_keys, AGREED)
        print_run(measure(asked.loader, asked.workers, make_batches, keys_of))


def _keys(batch: Batch) -> list[str]:
    return list(batch["__key__"])


if __name__ == "__main__":
    main()
