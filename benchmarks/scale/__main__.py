"""`python -m benchmarks.scale`: compare the model of many ranks with real ranks, and print a table up to 1024 GPUs."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.document import as_json, lines_of, show
from benchmarks.scale.compare import compare
from benchmarks.scale.page import DOCUMENT, findings, page
from benchmarks.scale.scaling_table import TRAININGS, scaling_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help=f"write docs/{DOCUMENT.name}")
    options = parser.parse_args()
    comparisons, load_average = [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="penstock-scale-") as folder:
        for each in compare(Path(folder)):
            comparisons.append(each)
            rates = f"{each.predicted:.0f} predicted, {each.measured:.0f} measured ({each.error:+.0%})"
            print(f"{'✓' if each.near else '✗'} {each.load}, {each.ranks}: {rates}", file=sys.stderr)
    tables = {training: list(scaling_rows(training)) for training in TRAININGS}
    found = {"scale": findings(comparisons, tables)}
    if options.json:
        print(as_json(found))
    else:
        show(found)
    if options.write:
        DOCUMENT.write_text(page(comparisons, tables, load_average))
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


if __name__ == "__main__":
    main()
