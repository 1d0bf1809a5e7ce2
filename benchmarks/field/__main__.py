"""`python -m benchmarks.field`: diagnose public training scripts, and measure what would have been right.

The scripts are fetched beside the checkout and never committed. `--fetch-list` prints one line per repository: name,
commit, and the folder that it belongs in below `--scripts`. A setting whose script or module is not there is skipped
with the reason. Data is made below `--folder`.

On a GPU machine without network (Python 3.12, torch 2.11, torchvision, timm) everything is carried in the ignored
folder `.carry/`:

- `field.tar.xz`, the scripts: `python -m benchmarks.field --make-carry .carry`;
- `site.tar.xz`, the dependencies of Penstock, and `field-site.tar.xz`, those of the scripts, both as unpacked wheels:
  `pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64` of Penstock's
  dependencies, and of webdataset braceexpand lightning lightning-utilities mfusepy requests urllib3 idna certifi
  charset-normalizer.

These lines, as one command there, make the data, run the settings of one part in order, and print the table:

    mkdir -p /root/site /root/scripts && tar -C /root/scripts -xJf .carry/field.tar.xz
    for part in site field-site; do tar -C /root/site -xJf .carry/$part.tar.xz; done
    export COLUMNS=200 PYTHONPATH=$PWD/src:$PWD:/root/site
    python3 -m benchmarks.field --gpu --part 1/3 --minutes 7 --seconds 7 --not-alone \\
        --scripts /root/scripts --folder /root/field --results $OUT/field-1.json

A part of three should take about 7 minutes (an estimate): each setting runs under `penstock run`, with data for free,
and with other workers. Without `--not-alone` it runs unwatched too, which shows the cost of watching. `--minutes`
begins no setting after that time and names those that were not reached. `--join field-1.json field-2.json …` judges all
parts together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.document import show, write
from benchmarks.field import score
from benchmarks.field.manifest import CPU_SETTINGS, GPU_SETTINGS, SETTINGS, Setting
from benchmarks.field.run import Result, Runner, missing

BESIDE = Path(__file__).parents[2].parent / "penstock-field-scripts"
SECTION = "field"
LARGEST_CARRIED = 5_000_000
"""Bytes; larger files are no scripts."""
CARRIED = (".py", ".txt", ".json", ".ipynb", ".yaml", ".cfg")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--scripts", type=Path, default=BESIDE, help=f"folder of the repositories; default {BESIDE}")
    parser.add_argument("--folder", type=Path, help="keep data, copies and recordings here")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="run only settings that contain a name")
    parser.add_argument("--gpu", action="store_true", help="run the settings for a GPU machine instead")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="run only every N-th stretch of the settings")
    parser.add_argument("--seconds", type=float, default=10, help="length of each run after its first step")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no setting after so many minutes")
    parser.add_argument("--not-alone", action="store_true", help="skip the run without watching")
    parser.add_argument("--list", action="store_true", help="print the settings and run nothing")
    parser.add_argument("--fetch-list", action="store_true", help="print the repositories and run nothing")
    parser.add_argument("--make-carry", type=Path, metavar="DIR", help="pack the GPU machine's scripts and run nothing")
    parser.add_argument("--results", type=Path, help="write the results as JSON here too, after every setting")
    parser.add_argument("--join", type=Path, nargs="+", metavar="JSON", help="run nothing; judge earlier results")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    options = parser.parse_args()
    chosen = _chosen(options)
    if options.fetch_list:
        for line in sorted({f"{s.script.repository} {s.script.commit} {s.script.folder}" for s in SETTINGS}):
            print(line)
        return
    if options.make_carry:
        _carry(options.scripts, options.make_carry)
        return
    if options.list:
        for setting in chosen:
            print(f"{setting.full_name}: {setting.args}")
        return
    results = _joined(options.join) if options.join else _run(chosen, options)
    if not results:
        sys.exit("no setting ran")
    if options.json:
        print(json.dumps([asdict(result) | {"outcome": score.outcome(result)} for result in results], indent=2))
    found = {SECTION: [*score.lines(results), score.table(results), score.verdicts(results)]}
    if not options.json:
        show(found)
    if options.write:
        write(found)
    sys.exit(0 if all(line.reached for line in score.lines(results)) else 1)


def _chosen(options: argparse.Namespace) -> list[Setting]:
    settings = GPU_SETTINGS if options.gpu else CPU_SETTINGS
    part, parts = map(int, options.part.split("/"))
    size = -(-len(settings) // parts)
    settings = settings[(part - 1) * size : part * size]
    return [each for each in settings if not options.only or any(name in each.full_name for name in options.only)]


def _run(chosen: list[Setting], options: argparse.Namespace) -> list[Result]:
    results: list[Result] = []
    end = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="penstock-field-") as scratch:
        runner = Runner(options.scripts, options.folder or Path(scratch), options.seconds, not options.not_alone)
        for setting in chosen:
            if time.monotonic() > end:
                print(f"not reached: {setting.full_name}", file=sys.stderr)
                continue
            if reason := missing(setting, options.scripts):
                print(f"skipped {setting.full_name}: {reason}", file=sys.stderr)
                continue
            start = time.monotonic()
            try:
                result = runner.run(setting)
            except (RuntimeError, TimeoutError, OSError) as error:
                print(f"failed {setting.full_name}: {error}", file=sys.stderr)
                continue
            results.append(result)
            gains = ", ".join(f"{name} {gain:+.0%}" for name, gain in result.gains.items())
            seconds = time.monotonic() - start
            print(f"{result.name}: {result.rate:.1f} steps/s; {gains}; {seconds:.0f} s", file=sys.stderr, flush=True)
            if options.results:
                options.results.write_text(json.dumps([asdict(each) for each in results], indent=1))
    return results


def _joined(files: list[Path]) -> list[Result]:
    return [
        Result(**each | {name: tuple(each[name]) for name in ("findings", "planned")})
        for file in files
        for each in json.loads(file.read_text())
    ]


def _carry(scripts: Path, target: Path) -> None:
    """Pack the repositories that the GPU settings use, without large files and histories."""
    folders = {setting.script.folder for setting in GPU_SETTINGS}
    with tarfile.open(target / "field.tar.xz", "w:xz") as tar:
        for folder in sorted(folders):
            for file in sorted((scripts / folder).rglob("*")):
                if file.suffix in CARRIED and file.is_file() and file.stat().st_size <= LARGEST_CARRIED:
                    tar.add(file, arcname=str(file.relative_to(scripts)))
    print(f"{target / 'field.tar.xz'}: {(target / 'field.tar.xz').stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
