"""`python -m benchmarks.scale`: the model of many ranks beside real ones, and a table from 1 to 1024 GPUs."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.document import as_json, lines_of, show
from benchmarks.scale.judge import judge
from benchmarks.scale.page import DOCUMENT, findings, page
from benchmarks.scale.reach import TRAININGS, reach


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help=f"write docs/{DOCUMENT.name}")
    asked = parser.parse_args()
    judged, load = [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="penstock-scale-") as folder:
        for each in judge(Path(folder)):
            judged.append(each)
            said = f"{each.predicted:.0f} predicted, {each.measured:.0f} measured ({each.error:+.0%})"
            print(f"{'✓' if each.near else '✗'} {each.load}, {each.ranks}: {said}", file=sys.stderr)
    reached = {training: list(reach(training)) for training in TRAININGS}
    found = {"scale": findings(judged, reached)}
    if asked.json:
        print(as_json(found))
    else:
        show(found)
    if asked.write:
        DOCUMENT.write_text(page(judged, reached, load))
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


if __name__ == "__main__":
    main()
