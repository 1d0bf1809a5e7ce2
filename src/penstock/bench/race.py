"""The race: both loaders over the same course, in fresh processes, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from penstock.bench.fields import BenchmarkField
from penstock.bench.trial import LoaderRun, in_child
from penstock.bench.workload import BenchmarkWorkload, make_workload
from penstock.errors import PenstockError

WORKERS = (1, 2, 4)
"""Tried for the plain loader, whose best one counts."""
ROUNDS = 3
SECONDS = 20.0
"""For the slowest run, about: of heavy samples a shorter one has too few batches to speak of a rate."""
TRY_BATCHES = 4
"""Run before the race, to see how many samples fill the seconds."""
RUN_TIMEOUT_S = 600.0

OURS_NAME = "penstock"
PLAIN_NAME = "plain DataLoader"
OURS = "penstock.bench.penstock_loader"
PLAIN = "penstock.bench.torch_loader"

Run = Callable[[Sequence[str], float], LoaderRun]


@dataclass(frozen=True, slots=True)
class BenchmarkedLoader:
    """Who runs: a module with a `main`, and what it is told beside the course."""

    module: str
    workers: int | None = None
    """None: it decides."""

    def argv(self, course: Path) -> list[str]:
        """For `in_child`."""
        return [self.module, str(course), *([] if self.workers is None else [str(self.workers)])]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSummary:
    """The medians of one entry's rounds."""

    contestant: str
    workers: int
    batches: int
    rate: float
    slowest_rate: float
    fastest_rate: float
    first_batch_s: float
    peak_memory_bytes: int
    memory_kind: str
    cpu_s_per_sample: float | None
    rounds: int


@dataclass(frozen=True, slots=True)
class BenchmarkLimits:
    """How much is raced."""

    batch_size: int
    max_samples: int | None
    """None: as many as the plain loader with one worker takes about `seconds` for."""
    seconds: float = SECONDS
    workers: tuple[int, ...] = WORKERS


def prepare(
    shards: Sequence[str], fields: Sequence[BenchmarkField], limits: BenchmarkLimits, folder: Path, run: Run = in_child
) -> BenchmarkWorkload:
    """A course that the slowest contestant runs in about the seconds given; `folder` is for copies, if any."""
    lanes = max(limits.workers)
    samples = limits.max_samples
    if samples is None:
        trying = folder / "try"
        trying.mkdir()
        short = make_workload(shards, fields, limits.batch_size, TRY_BATCHES * limits.batch_size, lanes, trying)
        tried = _run(short, BenchmarkedLoader(PLAIN, 1), folder, run)
        samples = max(TRY_BATCHES * limits.batch_size, round(tried.rate * limits.seconds))
    return make_workload(shards, fields, limits.batch_size, samples, lanes, folder)


def benchmarked_loaders(workers: Sequence[int] = WORKERS) -> list[BenchmarkedLoader]:
    """Ours as it comes, and the plain one with each number of workers."""
    return [BenchmarkedLoader(OURS), *(BenchmarkedLoader(PLAIN, count) for count in workers)]


def run_rounds(
    course: BenchmarkWorkload, runners: Sequence[BenchmarkedLoader], rounds: int, folder: Path, run: Run = in_child
) -> Iterator[LoaderRun]:
    """Every runner once a round, another one first in each, so that a slow moment of the machine strikes all."""
    for number in range(rounds):
        first = number % len(runners)
        for entry in (*runners[first:], *runners[:first]):
            yield _run(course, entry, folder, run)


def summarise(trials: Sequence[LoaderRun]) -> list[LoaderSummary]:
    """Medians per contestant and number of workers, the fastest first."""
    together: dict[tuple[str, int], list[LoaderRun]] = {}
    for trial in trials:
        together.setdefault((trial.contestant, trial.workers), []).append(trial)
    return sorted(map(_standing, together.values()), key=lambda standing: -standing.rate)


def _standing(trials: list[LoaderRun]) -> LoaderSummary:
    cpu = [trial.cpu_s_per_sample for trial in trials if trial.cpu_s_per_sample is not None]
    rates = [trial.rate for trial in trials]
    return LoaderSummary(
        contestant=trials[0].contestant,
        workers=trials[0].workers,
        batches=trials[0].batches,
        rate=median(rates),
        slowest_rate=min(rates),
        fastest_rate=max(rates),
        first_batch_s=median(trial.first_batch_s for trial in trials),
        peak_memory_bytes=round(median(trial.peak_memory_bytes for trial in trials)),
        memory_kind=trials[0].memory_kind,
        cpu_s_per_sample=median(cpu) if cpu else None,
        rounds=len(trials),
    )


def _run(course: BenchmarkWorkload, entry: BenchmarkedLoader, folder: Path, run: Run) -> LoaderRun:
    """One run, believed only if every key came exactly once."""
    path = folder / "course.json"
    course.save(path)
    trial = run(entry.argv(path), RUN_TIMEOUT_S)
    if (trial.samples, trial.keys_digest) != (course.samples, course.keys_digest):
        raise PenstockError(
            f"{trial.contestant} with {trial.workers} workers delivered {trial.samples} samples where these "
            f"{course.samples}, each once, were due: its speed means nothing",
            stage="bench",
        )
    return trial
