"""The race as `make bench` runs it: in the peers' environment, which is made if it is not there."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.peers import environment
from benchmarks.peers.compare import Results
from benchmarks.peers.report import lines, tables
from benchmarks.result import Line, Table


def measure(options: Sequence[str] = ()) -> Iterator[Line | Table]:
    """Options are those of `benchmarks.peers.compare`: kinds, --rounds, --quick."""
    made = environment.ensure()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        known = ["--out", str(out), "--absent", json.dumps(made.absent)]
        command = [str(made.python), "-m", "benchmarks.peers.compare", *known, *options]
        subprocess.run(command, check=True, cwd=environment.ROOT, env=made.variables())
        results = msgspec.json.decode(out.read_bytes(), type=Results)
    yield from lines(results)
    yield from tables(results)
