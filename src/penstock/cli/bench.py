"""`penstock bench`: this loader against a plain DataLoader, on the user's own shards."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.bench.fields import SIZE, BenchmarkField, guess_fields, parse_fields
from penstock.bench.race import (
    OURS_NAME,
    ROUNDS,
    SECONDS,
    WORKERS,
    BenchmarkLimits,
    LoaderSummary,
    benchmarked_loaders,
    prepare,
    run_rounds,
    summarise,
)
from penstock.bench.trial import LoaderRun
from penstock.bench.workload import BenchmarkWorkload
from penstock.cli import console
from penstock.cli.arguments import AsJson, Shards, need_torch
from penstock.report.bench import BenchRow, bench_meaning, bench_table
from penstock.storage.paths import expand_shard_paths


def bench(
    shards: Shards,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SUFFIX[:SIZE|:KEY]",
            help="A picture (image=.jpg:1024) or an array (edge=_features.npz:edge); may be repeated.",
        ),
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Pixels a side, for pictures without a size of their own.")] = SIZE,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 16,
    workers: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Workers of the plain loader; may be repeated.  [default: 1, 2, 4]"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each; medians are shown.")] = ROUNDS,
    seconds: Annotated[float, typer.Option(min=0.1, max=120, help="About how long the slowest run takes.")] = SECONDS,
    max_samples: Annotated[int | None, typer.Option(min=2, help="Race about so many samples instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """How much faster would your shards load? Race both loaders on them.

    penstock.Loader with its defaults runs against a torch DataLoader as it
    is often written (tarfile, Pillow, np.load) with 1, 2 and 4 workers, of
    which the best counts. Each run is a fresh process; they take turns, and
    another one begins each round. A run counts only if it delivered every
    sample exactly once. Fields are guessed from the first sample unless
    given: pictures, stretched to a square, and arrays.

        penstock bench sa1b/ --field image=.jpg:1024

    samples/s is the rate after the first fifth of the batches; "first
    batch" the time to the first, imports left out, shards indexed; memory
    the peak of all processes together; CPU that of all processes. Ours decodes with
    quality="fast". Of a large dataset only as many samples are raced as
    take about --seconds; of very large shards they are copied to a
    temporary folder. From the second run on files are in the page cache:
    for cold storage see `penstock doctor`.

    Exit code: 0 raced, 2 wrong usage, 3 a contestant failed.
    """
    need_torch("the rival is its DataLoader")
    paths = expand_shard_paths(shards)
    fields = parse_fields(field, size) if field else _guess(paths[0], size)
    limits = BenchmarkLimits(batch_size, max_samples, seconds, tuple(workers or WORKERS))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        with console.notices.status("seeing how many samples to race …"):
            course = prepare(paths, fields, limits, Path(folder))
        trials = _race(course, limits, rounds, Path(folder))
    table = summarise(trials)
    if as_json:
        console.print_json(_document(course, table, trials))
    else:
        _print(course, table)


def _guess(shard: str, size: int) -> Sequence[BenchmarkField]:
    guess = guess_fields(shard, size)
    said = " ".join(f"--field {field}" for field in guess.fields)
    left = f"; left out: {', '.join(guess.left_out)}" if guess.left_out else ""
    console.notices.print(f"fields guessed: {said}{left}", markup=False, highlight=False, soft_wrap=True)
    return guess.fields


def _race(course: BenchmarkWorkload, limits: BenchmarkLimits, rounds: int, folder: Path) -> list[LoaderRun]:
    runners = benchmarked_loaders(limits.workers)
    trials: list[LoaderRun] = []
    with console.progress("racing", rounds * len(runners)) as bar:
        for trial in run_rounds(course, runners, rounds, folder):
            trials.append(trial)
            last = f"{trial.contestant}, {trial.workers} workers: {trial.rate:,.0f} samples/s"
            bar.update(bar.task_ids[0], advance=1, description=f"racing ({last})")
    return trials


def _print(course: BenchmarkWorkload, table: list[LoaderSummary]) -> None:
    ours, rival = _sides(table)
    racers = [_racer(standing) for standing in table]
    where = "the first of each shard, copied" if course.copied else "as they lie"
    title = f"{course.samples:,} samples in {len(course.shards)} shards ({where}), batches of {course.batch_size}"
    console.out.print(bench_table(title, racers, rival))
    console.out.print(bench_meaning(ours, rival), markup=False, highlight=False, soft_wrap=True)


def _sides(table: list[LoaderSummary]) -> tuple[BenchRow, BenchRow]:
    """Ours, and the best of the others."""
    ours = next(standing for standing in table if standing.contestant == OURS_NAME)
    rival = next(standing for standing in table if standing.contestant != OURS_NAME)
    return _racer(ours), _racer(rival)


def _racer(standing: LoaderSummary) -> BenchRow:
    facts = asdict(standing)
    del facts["memory_kind"]
    return BenchRow(**facts)


def _document(course: BenchmarkWorkload, table: list[LoaderSummary], trials: list[LoaderRun]) -> dict[str, Any]:
    ours, rival = _sides(table)
    return {
        "course": msgspec.to_builtins(course),
        "standings": msgspec.to_builtins(table),
        "ratio": ours.rate / rival.rate,
        "meaning": bench_meaning(ours, rival),
        "trials": msgspec.to_builtins(trials),
    }
