"""`penstock bench`: compares `penstock.Loader` with a plain DataLoader on the user's own shards."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.bench.fields import SIZE, BenchmarkField, guess_fields, parse_fields
from penstock.bench.loader_run import LoaderRun
from penstock.bench.side_by_side import (
    PENSTOCK_NAME,
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
from penstock.bench.workload import BenchmarkWorkload
from penstock.cli import console
from penstock.cli.arguments import AsJson, ImageSize, Shards, need_torch
from penstock.report.bench import BenchRow, bench_meaning, bench_table
from penstock.storage.paths import expand_shard_paths

RESUMED = "What was measured is lost: a second call measures again."


def bench(
    shards: Shards,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SUFFIX[:SIZE|:KEY]",
            help="An image (image=.jpg:1024) or an array (edge=_features.npz:edge); may be repeated.",
        ),
    ] = None,
    image_size: ImageSize = SIZE,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Samples per batch.")] = 16,
    num_workers: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="N", help="Workers of the plain loader; may be repeated.  [default: 1, 2, 4]"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each loader; medians are shown.")] = ROUNDS,
    duration: Annotated[
        float, typer.Option(min=0.1, max=120, metavar="SECONDS", help="Approximate duration of the slowest run.")
    ] = SECONDS,
    max_samples: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Read about this many samples, whatever the duration.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare penstock.Loader with a plain DataLoader on your shards.

    penstock.Loader with its defaults runs against a torch DataLoader as it
    is often written (tarfile, Pillow, np.load) with 1, 2 and 4 workers, of
    which the best counts. Each run is a fresh process; the loaders take
    turns, and each round starts with another one. A run counts only if it
    delivered every sample exactly once. Fields are guessed from the first
    sample unless given: images, stretched to a square, and arrays.

        penstock bench sa1b/ --field image=.jpg:1024

    "samples/s" is the rate after the first fifth of the batches; "first
    batch" the time to the first one, without imports, with indexed shards;
    "memory" the peak of all processes together; "CPU/sample" the CPU time
    of all processes. penstock.Loader decodes with quality="fast". Of a
    large dataset, only as many samples are read as take about --duration;
    of very large shards they are copied to a temporary folder. From the
    second run on the files are in the page cache: for cold storage see
    `penstock doctor`.

    Exit code: 0 compared, 2 wrong usage, 3 a loader failed.
    """
    need_torch("penstock bench compares with its DataLoader")
    paths = expand_shard_paths(shards)
    fields = parse_fields(field, image_size) if field else _guess(paths[0], image_size)
    limits = BenchmarkLimits(batch_size, max_samples, duration, tuple(num_workers or WORKERS))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        with console.busy("estimating how many samples to read …"):
            workload = prepare(paths, fields, limits, Path(folder))
        runs = _run(workload, limits, repeats, Path(folder))
    summaries = summarise(runs)
    if as_json:
        console.print_json(_document(workload, summaries, runs))
    else:
        _print(workload, summaries)


def _guess(shard: str, size: int) -> Sequence[BenchmarkField]:
    guess = guess_fields(shard, size)
    options = " ".join(f"--field {field}" for field in guess.fields)
    left_out = f"; left out: {', '.join(guess.left_out)}" if guess.left_out else ""
    console.print_notice(f"fields guessed: {options}{left_out}")
    return guess.fields


def _run(workload: BenchmarkWorkload, limits: BenchmarkLimits, repeats: int, folder: Path) -> list[LoaderRun]:
    loaders = benchmarked_loaders(limits.workers)
    runs: list[LoaderRun] = []
    with console.progress("running", repeats * len(loaders)) as bar:
        for run in run_rounds(workload, loaders, repeats, folder):
            runs.append(run)
            last = f"{run.loader}, {run.workers} workers: {run.rate:,.0f} samples/s"
            bar.update(bar.task_ids[0], advance=1, description=f"running ({last})")
    return runs


def _print(workload: BenchmarkWorkload, summaries: list[LoaderSummary]) -> None:
    penstock, baseline = _penstock_and_baseline(summaries)
    rows = [_row(summary) for summary in summaries]
    which = "the first samples of each shard, copied" if workload.copied else "whole shards"
    title = f"{workload.samples:,} samples in {len(workload.shards)} shards ({which}), batches of {workload.batch_size}"
    console.out.print(bench_table(title, rows, baseline))
    console.print_line(bench_meaning(penstock, baseline))


def _penstock_and_baseline(summaries: list[LoaderSummary]) -> tuple[BenchRow, BenchRow]:
    """Return the row of penstock.Loader, and the best of the plain loaders."""
    penstock = next(summary for summary in summaries if summary.loader == PENSTOCK_NAME)
    baseline = next(summary for summary in summaries if summary.loader != PENSTOCK_NAME)
    return _row(penstock), _row(baseline)


def _row(summary: LoaderSummary) -> BenchRow:
    facts = asdict(summary)
    del facts["memory_kind"]
    return BenchRow(**facts)


def _document(workload: BenchmarkWorkload, summaries: list[LoaderSummary], runs: list[LoaderRun]) -> dict[str, Any]:
    penstock, baseline = _penstock_and_baseline(summaries)
    return {
        "workload": msgspec.to_builtins(workload),
        "summaries": msgspec.to_builtins(summaries),
        "ratio": penstock.rate / baseline.rate,
        "meaning": bench_meaning(penstock, baseline),
        "runs": msgspec.to_builtins(runs),
    }
