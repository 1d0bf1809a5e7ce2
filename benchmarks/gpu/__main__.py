"""`python -m benchmarks.gpu`: the GPU's tests, then what arrives on the card, beside the loaders that people use.

Needs a CUDA device, torchvision with its CUDA decoder, and some 6 GB in the folder that is given; the shards have to
stay in memory. `--short` is over in ten minutes: rows that would begin late are left out, and named.
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
from benchmarks.gpu.throughput import Material
from benchmarks.result import Line

ROWS: dict[str, Callable[[Material], Iterable[Line]]] = {
    "imagenet": throughput.imagenet,
    "copies": copies.measure,
    "transform": transform.measure,
    "training": training.measure,
    # not first, as CPU time is counted: a machine that has just started makes its memory where it is first used
    "decoding": throughput.decoding,
    "sa1b": throughput.sa1b,
    "reid": throughput.reid,
    "auto": auto_decode.measure,
    "shapes": throughput.shapes,
}
SHORT_S = 580
LAST_START_S = 520
"""A row that begins later would not be over in time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"be done in {SHORT_S} s")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument(
        "--write", action="store_true", help="write the section, tests included, into docs/benchmarks.md"
    )
    parser.add_argument("--folder", type=Path, help="where shards are made; a temporary one if not given")
    parser.add_argument("--no-tests", action="store_true", help="only the table")
    parser.add_argument("--only", nargs="+", choices=ROWS, help="these rows, without the tests; not to be written")
    asked = parser.parse_args()
    if asked.only and asked.write:
        parser.error("what is written was measured in one run: --write goes without --only")
    start = time.perf_counter()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here")
    outcome = None if asked.no_tests or asked.only else run_tests()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        lines, complete = _measured(Path(folder), asked.only or [*ROWS], start if asked.short else None)
    found: dict[str, list[Finding]] = {"gpu": [*lines, *([] if outcome is None else [outcome.table()])]}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", file=sys.stderr)
    if asked.json:
        print(as_json(found))
    else:
        show(found)
    if asked.write:
        write(found)
    passed = outcome is None or outcome.complete
    sys.exit(0 if passed and complete and all(line.reached for line in lines_of(found)) else 1)


def _measured(folder: Path, names: Iterable[str], since: float | None) -> tuple[list[Line], bool]:
    """The lines, and whether every row was run to its end; one that fails costs only itself."""
    material = Material(folder)
    lines: list[Line] = []
    complete = True
    for name in names:
        if since is not None and time.perf_counter() - since > LAST_START_S:
            print(f"{name}: left out, there is no time for it", file=sys.stderr)
            complete = False
            continue
        begun = time.perf_counter()
        try:
            for line in ROWS[name](material):
                print(f"{line.what}: {line.ours} ({line.other}): {line.ratio:.3g}", file=sys.stderr, flush=True)
                lines.append(line)
        except Exception:
            print(f"{name}: failed\n{traceback.format_exc()}", file=sys.stderr)
            complete = False
        print(f"{name}: {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)
    return lines, complete


if __name__ == "__main__":
    main()
