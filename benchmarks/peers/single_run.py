"""One run of one contestant, in a process of its own; the last line it prints is the result.

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
    parser.add_argument("--packed", action="store_true", help="the shards after `penstock shards pack`")
    parser.add_argument("--quick", action="store_true", help="a handful of samples")
    parser.add_argument("--prepare", action="store_true", help="only make what this contestant needs once")
    parser.add_argument("--contents", action="store_true", help="print a digest of all that was delivered, no times")
    asked = parser.parse_args()
    kind = KINDS[asked.kind]
    shards = (data.packed_shards_of if asked.packed else data.shards_of)(kind, asked.quick)
    task = Task(kind, shards, kind.size(asked.quick).batch_size, asked.workers, asked.decoder)
    make_batches: MakeBatches = import_module(f"benchmarks.peers.loaders.{asked.loader}").prepare(task)
    if asked.prepare:
        return
    if asked.contents:
        print(content_digest(kind, make_batches()), flush=True)
        return
    name = f"{asked.loader}/{asked.decoder}"
    print_run(measure(name, asked.workers, make_batches, partial(checked_keys, kind)))


if __name__ == "__main__":
    main()
