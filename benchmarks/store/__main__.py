"""`python -m benchmarks.store`: a store that answers late, and how much of it each loader delivers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.peers import environment
from benchmarks.peers.compare import Result
from benchmarks.store.compare import MB_S
from benchmarks.store.report import findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb-s", type=float, default=MB_S, help="the store's bandwidth")
    parser.add_argument("--quick", action="store_true", help="a handful of samples: does everybody run?")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    asked = parser.parse_args()
    options = ["--rounds", str(asked.rounds), "--mb-s", str(asked.mb_s), *(["--quick"] if asked.quick else [])]
    found: dict[str, list[Finding]] = {"store": list(findings(_raced(options), asked.mb_s))}
    if asked.json:
        print(as_json(found))
    else:
        show(found)
    if asked.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


def _raced(options: list[str]) -> list[Result]:
    """In the peers' environment, which is made if it is not there."""
    made = environment.ensure()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        known = ["--out", str(out), "--absent", json.dumps(made.absent)]
        command = [str(made.python), "-m", "benchmarks.store.compare", *known, *options]
        subprocess.run(command, check=True, cwd=environment.ROOT, env=made.variables())
        return msgspec.json.decode(out.read_bytes(), type=list[Result])


if __name__ == "__main__":
    main()
