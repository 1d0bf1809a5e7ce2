"""`python -m benchmarks.gpu`: run the GPU's tests, then measure delivery to the GPU, compared with other loaders.

Needs a CUDA device, torchvision with its CUDA decoder, about 6 GB in the given folder, and enough memory to keep the
shards in the page cache. `--short` ends within ten minutes and names the benchmarks that it left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.gpu import auto_decode, copies, throughput, training, transform
from benchmarks.gpu.pytest_outcome import run_tests
from benchmarks.gpu.throughput import ShardSets
from benchmarks.result import Line

BENCHMARKS: dict[str, Callable[[ShardSets], Iterable[Line]]] = {
    "imagenet": throughput.imagenet,
    "copies": copies.measure,
    "transform": transform.measure,
    "training": training.measure,
    # Not first, because it counts CPU time: on a machine that has just started, memory is only allocated at first use.
    "decoding": throughput.decoding,
    "sa1b": throughput.sa1b,
    "reid": throughput.reid,
    "auto": auto_decode.measure,
    "shapes": throughput.shapes,
}
SHORT_S = 580
LAST_START_S = 520
"""The last second at which `--short` starts a benchmark: one that starts later would not end within SHORT_S."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"end within {SHORT_S} s")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument(
        "--write", action="store_true", help="write the section, tests included, into docs/benchmarks.md"
    )
    parser.add_argument("--folder", type=Path, help="where shards are made; default: a temporary folder")
    parser.add_argument("--no-tests", action="store_true", help="run the benchmarks without the tests")
    parser.add_argument(
        "--only", nargs="+", choices=BENCHMARKS, help="run these benchmarks, without the tests; excludes --write"
    )
    options = parser.parse_args()
    if options.only and options.write:
        parser.error("--write needs all results of one run: leave out --only")
    start = time.perf_counter()
    if not torch.cuda.is_available():
        sys.exit("this machine has no CUDA device")
    outcome = None if options.no_tests or options.only else run_tests()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        names = options.only or [*BENCHMARKS]
        lines, complete = _run_benchmarks(Path(folder), names, start if options.short else None)
    found: dict[str, list[Finding]] = {"gpu": [*lines, *([] if outcome is None else [outcome.table()])]}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", file=sys.stderr)
    if options.json:
        print(as_json(found))
    else:
        show(found)
    if options.write:
        write(found)
    passed = outcome is None or outcome.complete
    sys.exit(0 if passed and complete and all(line.reached for line in lines_of(found)) else 1)


def _run_benchmarks(folder: Path, names: Iterable[str], limited_since: float | None) -> tuple[list[Line], bool]:
    """Return the lines, and whether every benchmark ran to its end. If one fails, the others still run.

    `limited_since` is the start of a run with `--short`; None: all benchmarks run, however long they take.
    """
    shard_sets = ShardSets(folder)
    lines: list[Line] = []
    complete = True
    for name in names:
        if limited_since is not None and time.perf_counter() - limited_since > LAST_START_S:
            print(f"{name}: left out, too little time is left", file=sys.stderr)
            complete = False
            continue
        start = time.perf_counter()
        try:
            for line in BENCHMARKS[name](shard_sets):
                print(f"{line.what}: {line.ours} ({line.other}): {line.ratio:.3g}", file=sys.stderr, flush=True)
                lines.append(line)
        except Exception:
            print(f"{name}: failed\n{traceback.format_exc()}", file=sys.stderr)
            complete = False
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return lines, complete


if __name__ == "__main__":
    main()
