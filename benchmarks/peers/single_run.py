"""Runs one loader once, in a process of its own; the last line of its output is the result.

`python -m benchmarks.peers.single_run --kind sa1b --loader webdataset --decoder ours --workers 2`
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module

from benchmarks.peers import data
from benchmarks.peers.kinds import KINDS
from benchmarks.peers.task import DECODERS, MakeBatches, Task, checked_keys, content_digest
from penstock.bench.loader_run import measure, print_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--loader", required=True, help="a module of benchmarks.peers.loaders")
    parser.add_argument("--decoder", choices=DECODERS, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--packed", action="store_true", help="read the shards after `penstock shards pack`")
    parser.add_argument("--quick", action="store_true", help="read only a few samples")
    parser.add_argument("--prepare", action="store_true", help="only make what this loader makes once for a dataset")
    parser.add_argument(
        "--contents", action="store_true", help="print a digest of all delivered values instead of times"
    )
    options = parser.parse_args()
    kind = KINDS[options.kind]
    shards = (data.packed_shards_of if options.packed else data.shards_of)(kind, options.quick)
    task = Task(kind, shards, kind.size(options.quick).batch_size, options.workers, options.decoder)
    make_batches: MakeBatches = import_module(f"benchmarks.peers.loaders.{options.loader}").prepare(task)
    if options.prepare:
        return
    if options.contents:
        print(content_digest(kind, make_batches()), flush=True)
        return
    name = f"{options.loader}/{options.decoder}"
    print_run(measure(name, options.workers, make_batches, partial(checked_keys, kind)))


if __name__ == "__main__":
    main()
