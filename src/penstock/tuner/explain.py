"""Why a setting was chosen, in sentences with their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.format import format_ms
from penstock.errors import PenstockError, SampleError, SettingError, WorkerCrash
from penstock.tuner.loader_copy import copy_dataset
from penstock.tuner.measure import StepCost
from penstock.tuner.result import PREFETCH, Setting
from penstock.tuner.trials import SettingTrials, one_line
from penstock.tuner.worker_cost import FetchFailed, StartFailed, WorkerCost

BINDS = {
    "workers": "the workers themselves",
    "cpu": "the cores",
    "main": "the main process with its step",
    "step": "the step",
}
"""What holds the rate down, by the law's name."""


@dataclass(frozen=True, kw_only=True)
class TuningFacts:
    """What there is to tell."""

    service: WorkerCost
    cost: StepCost
    step_known: bool
    cores: float
    guess: int
    """The model's number of workers."""
    limit: str
    """The law that binds there."""
    chosen: Setting
    rate_tolerance: float
    samples_s: Mapping[Setting, float]
    notes: tuple[str, ...]


def explain(told: TuningFacts) -> tuple[str, ...]:
    """One sentence each."""
    return tuple(_sentences(told))


def _sentences(told: TuningFacts) -> Iterator[str]:
    service = told.service
    cpu_s, waiting_s = float(service.cpu_s.mean()), float(service.waiting_s.mean())
    yield (
        f"A batch takes one worker {format_ms(cpu_s + waiting_s)} ({format_ms(cpu_s)} computing, "
        f"{format_ms(waiting_s)} waiting) and the main process {format_ms(service.handover_s)} to take over"
    )
    if told.step_known:
        yield f"A step takes {format_ms(told.cost.step_s)}"
    yield (
        f"The model: {Setting(told.guess)} should be enough on {told.cores:g} cores; "
        f"{BINDS.get(told.limit, told.limit)} would set the pace"
    )
    yield _choice(told)
    if told.chosen.prefetch != PREFETCH:
        yield f"prefetch_factor {told.chosen.prefetch}: batches are uneven, and batches ahead make up for slow ones"
    if not told.chosen.in_order:
        yield "in_order=False: slow batches hold nobody up, and the order of batches is no longer that of the sampler"
    yield from told.notes


def _choice(told: TuningFacts) -> str:
    rates = told.samples_s
    rate = rates[told.chosen]
    best = max(rates, key=lambda setting: rates[setting])
    said = f"{str(told.chosen).capitalize()}: {rate:,.0f} samples/s"
    if best != told.chosen:
        said += f", the least within {told.rate_tolerance:.1%} of the best measured ({rates[best]:,.0f} with {best})"
    default = rates.get(Setting())
    if default and told.chosen.workers:
        said += f"; {rate / default:.2f}× torch's default"
    if not told.chosen.workers and not told.step_known:
        said += "; a step was not measured, and it comes on top where there are no workers"
    return said


DIED = ("exited unexpectedly", "killed by signal")
"""torch's words for a worker that is gone."""


def explain_failure(error: StartFailed | FetchFailed, trials: SettingTrials) -> PenstockError:
    """What to tell the user."""
    cause = error.__cause__
    said = one_line(cause)
    if isinstance(error, StartFailed):
        return SettingError(
            f"worker processes cannot be started: {said}",
            stage="start",
            advice="What is sent to spawned processes must be picklable: define classes and functions at module level, "
            "open files at the first __getitem__",
        )
    if any(words in str(cause) for words in DIED):
        return WorkerCrash(f"a worker died on batch {error.batch}: {said}", stage="fetch")
    if trials.order is None or error.batch >= len(trials.order.drawn):
        return SampleError(f"batch {error.batch} of the dataset cannot be loaded: {said}", stage="fetch")
    drawn = trials.order.drawn[error.batch]
    indices = drawn if isinstance(drawn, list | tuple) else [drawn]
    found = _culprit(trials.pattern.dataset, indices)
    if found is None:
        return SampleError(
            f"a batch of items {_listed(indices)} cannot be loaded: {said}",
            stage="fetch",
            advice="Each item alone can: look at collate_fn, and at what differs in a worker process",
        )
    index, raised = found
    return SampleError(f"item {index!r} of the dataset cannot be loaded: {one_line(raised)}", stage="fetch")


def _culprit(dataset: Any, indices: Sequence[Any]) -> tuple[Any, Exception] | None:
    """The first item that raises here, too. Loaded from a copy where there can be one."""
    copy = copy_dataset(dataset)
    items = dataset if copy is None else copy
    for index in indices:
        try:
            items[index]
        except Exception as error:
            return index, error
    return None


def _listed(indices: Sequence[Any]) -> str:
    words = ", ".join(map(repr, indices[:4]))
    return f"{words}, …" if len(indices) > 4 else words
