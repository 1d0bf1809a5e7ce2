"""Runs both loaders over the same workload, in fresh processes and in turn, and summarises the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from penstock.bench.fields import BenchmarkField
from penstock.bench.loader_run import LoaderRun, run_in_child
from penstock.bench.workload import BenchmarkWorkload, make_workload
from penstock.errors import PenstockError

WORKERS = (1, 2, 4)
"""Numbers of workers of the plain loader; its best result counts."""
ROUNDS = 3
SECONDS = 20.0
"""Approximate duration of the slowest run: with heavy samples a shorter run has too few batches for a rate."""
TRY_BATCHES = 4
"""Batches of the run that estimates how many samples fill the seconds."""
RUN_TIMEOUT_S = 600.0

PENSTOCK_NAME = "penstock"
PLAIN_NAME = "plain DataLoader"
PENSTOCK_MODULE = "penstock.bench.penstock_loader"
PLAIN_MODULE = "penstock.bench.torch_loader"

RunModule = Callable[[Sequence[str], float], LoaderRun]
"""Runs a module with arguments in a fresh process, with a timeout in seconds."""


@dataclass(frozen=True, slots=True)
class BenchmarkedLoader:
    """One loader of the benchmark: a module with a `main`, and its number of workers."""

    module: str
    workers: int | None = None
    """None: the loader decides."""

    def argv(self, workload_file: Path) -> list[str]:
        """Return the arguments for `run_in_child`."""
        return [self.module, str(workload_file), *([] if self.workers is None else [str(self.workers)])]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSummary:
    """The medians over all rounds of one loader with one number of workers."""

    loader: str
    workers: int
    batches: int
    """Batches of each round."""
    rate: float
    """Samples per second of the median round; `slowest_rate` and `fastest_rate` are those of the extreme rounds."""
    slowest_rate: float
    fastest_rate: float
    first_batch_s: float
    peak_memory_bytes: int
    memory_kind: str
    cpu_s_per_sample: float | None
    rounds: int


@dataclass(frozen=True, slots=True)
class BenchmarkLimits:
    """The size of the benchmark."""

    batch_size: int
    max_samples: int | None
    """None: as many as the plain loader with one worker delivers in about `seconds`."""
    seconds: float = SECONDS
    workers: tuple[int, ...] = WORKERS


def prepare(
    shards: Sequence[str],
    fields: Sequence[BenchmarkField],
    limits: BenchmarkLimits,
    folder: Path,
    run: RunModule = run_in_child,
) -> BenchmarkWorkload:
    """Make a workload that takes the slowest loader about the given seconds; `folder` is for copies, if any."""
    min_shards = max(limits.workers)
    samples = limits.max_samples
    if samples is None:
        try_folder = folder / "try"
        try_folder.mkdir()
        try_samples = TRY_BATCHES * limits.batch_size
        short = make_workload(shards, fields, limits.batch_size, try_samples, min_shards, try_folder)
        result = _run(short, BenchmarkedLoader(PLAIN_MODULE, 1), folder, run)
        samples = max(try_samples, round(result.rate * limits.seconds))
    return make_workload(shards, fields, limits.batch_size, samples, min_shards, folder)


def benchmarked_loaders(workers: Sequence[int] = WORKERS) -> list[BenchmarkedLoader]:
    """Return `penstock.Loader` with its defaults, and the plain loader with each number of workers."""
    return [BenchmarkedLoader(PENSTOCK_MODULE), *(BenchmarkedLoader(PLAIN_MODULE, count) for count in workers)]


def run_rounds(
    workload: BenchmarkWorkload,
    loaders: Sequence[BenchmarkedLoader],
    rounds: int,
    folder: Path,
    run: RunModule = run_in_child,
) -> Iterator[LoaderRun]:
    """Run every loader once per round, starting each round with another one.

    The order changes so that a slow phase of the machine affects all loaders.
    """
    for number in range(rounds):
        first = number % len(loaders)
        for loader in (*loaders[first:], *loaders[:first]):
            yield _run(workload, loader, folder, run)


def summarise(runs: Sequence[LoaderRun]) -> list[LoaderSummary]:
    """Return the medians per loader and number of workers, the fastest first."""
    groups: dict[tuple[str, int], list[LoaderRun]] = {}
    for run in runs:
        groups.setdefault((run.loader, run.workers), []).append(run)
    return sorted(map(_summary, groups.values()), key=lambda summary: -summary.rate)


def _summary(runs: list[LoaderRun]) -> LoaderSummary:
    cpu = [run.cpu_s_per_sample for run in runs if run.cpu_s_per_sample is not None]
    rates = [run.rate for run in runs]
    return LoaderSummary(
        loader=runs[0].loader,
        workers=runs[0].workers,
        batches=runs[0].batches,
        rate=median(rates),
        slowest_rate=min(rates),
        fastest_rate=max(rates),
        first_batch_s=median(run.first_batch_s for run in runs),
        peak_memory_bytes=round(median(run.peak_memory_bytes for run in runs)),
        memory_kind=runs[0].memory_kind,
        cpu_s_per_sample=median(cpu) if cpu else None,
        rounds=len(runs),
    )


def _run(workload: BenchmarkWorkload, loader: BenchmarkedLoader, folder: Path, run: RunModule) -> LoaderRun:
    """Run a loader once; refuse the result unless it delivered every key of the workload exactly once."""
    path = folder / "workload.json"
    workload.save(path)
    result = run(loader.argv(path), RUN_TIMEOUT_S)
    if (result.samples, result.keys_digest) != (workload.samples, workload.keys_digest):
        raise PenstockError(
            f"{result.loader} with {result.workers} workers delivered {result.samples} samples where these "
            f"{workload.samples}, each once, were expected: its speed means nothing",
            stage="bench",
        )
    return result
