"""Sentences about a tuning: why settings were chosen, or why nothing could be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.format import format_ms
from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.errors import PenstockError, SampleError, SettingError, WorkerCrash
from penstock.tuner.loader_copy import copy_dataset
from penstock.tuner.measure import StepCost
from penstock.tuner.result import WorkerSettings
from penstock.tuner.trials import SettingTrials, error_line
from penstock.tuner.worker_cost import FetchFailed, WorkerCost, WorkerStartFailed

# -- reasons -------------------------------------------------------------------------------------------------------

BOUND_NAMES = {
    "workers": "the workers themselves",
    "cpu": "the cores",
    "main": "the main process with its step",
    "step": "the step",
}
"""A description of the bounds on the rate, by the name of the bound."""


@dataclass(frozen=True, kw_only=True)
class TuningFacts:
    """The measurements and decisions of a tuning that its reasons describe."""

    worker: WorkerCost
    step: StepCost
    step_known: bool
    cores: float
    guess: int
    """The model's number of workers."""
    bound: str
    """The name of the lowest bound on the rate with that number."""
    chosen: WorkerSettings
    rate_tolerance: float
    samples_s: Mapping[WorkerSettings, float]
    notes: tuple[str, ...]


def explain(facts: TuningFacts) -> tuple[str, ...]:
    """Return the reasons, one sentence each."""
    return tuple(_sentences(facts))


def _sentences(facts: TuningFacts) -> Iterator[str]:
    worker = facts.worker
    cpu_s, waiting_s = float(worker.cpu_s.mean()), float(worker.waiting_s.mean())
    yield (
        f"A batch takes one worker {format_ms(cpu_s + waiting_s)} ({format_ms(cpu_s)} computing, "
        f"{format_ms(waiting_s)} waiting) and the main process {format_ms(worker.receive_s)} to receive"
    )
    if facts.step_known:
        yield f"A step takes {format_ms(facts.step.step_s)}"
    yield (
        f"The model: {WorkerSettings(facts.guess)} should be enough on {facts.cores:g} cores; the rate would be "
        f"limited by {BOUND_NAMES.get(facts.bound, facts.bound)}"
    )
    yield _choice(facts)
    if facts.chosen.prefetch != TORCH_PREFETCH_FACTOR:
        yield f"prefetch_factor {facts.chosen.prefetch}: batches are uneven, and prefetched ones cover the slow ones"
    if not facts.chosen.in_order:
        yield "in_order=False: slow batches delay no others, and the order of batches is no longer that of the sampler"
    yield from facts.notes


def _choice(facts: TuningFacts) -> str:
    rates = facts.samples_s
    rate = rates[facts.chosen]
    best = max(rates, key=lambda setting: rates[setting])
    text = f"{str(facts.chosen).capitalize()}: {rate:,.0f} samples/s"
    if best != facts.chosen:
        text += f", the least within {facts.rate_tolerance:.1%} of the best measured ({rates[best]:,.0f} with {best})"
    default = rates.get(WorkerSettings())
    if default and facts.chosen.workers:
        text += f"; {rate / default:.2f}× torch's default"
    if not facts.chosen.workers and not facts.step_known:
        text += "; a step was not measured, and its time is added where there are no workers"
    return text


# -- failures ------------------------------------------------------------------------------------------------------

DEATH_MESSAGES = ("exited unexpectedly", "killed by signal")
"""Parts of torch's messages about a worker that has died."""


def explain_failure(error: WorkerStartFailed | FetchFailed, trials: SettingTrials) -> PenstockError:
    """Return the error to raise: which item cannot be loaded, or what is wrong with the dataset."""
    cause = error.__cause__
    text = error_line(cause)
    if isinstance(error, WorkerStartFailed):
        return SettingError(
            f"worker processes cannot be started: {text}",
            stage="start",
            advice="What is sent to spawned processes must be picklable: define classes and functions at module level, "
            "open files at the first __getitem__",
        )
    if any(message in str(cause) for message in DEATH_MESSAGES):
        return WorkerCrash(f"a worker died on batch {error.batch}: {text}", stage="fetch")
    if trials.order is None or error.batch >= len(trials.order.drawn):
        return SampleError(f"batch {error.batch} of the dataset cannot be loaded: {text}", stage="fetch")
    drawn = trials.order.drawn[error.batch]
    indices = drawn if isinstance(drawn, list | tuple) else [drawn]
    failing = _failing_item(trials.template.dataset, indices)
    if failing is None:
        return SampleError(
            f"a batch of items {_index_list(indices)} cannot be loaded: {text}",
            stage="fetch",
            advice="Each item alone can: check collate_fn, and what differs in a worker process",
        )
    index, raised = failing
    return SampleError(f"item {index!r} of the dataset cannot be loaded: {error_line(raised)}", stage="fetch")


def _failing_item(dataset: Any, indices: Sequence[Any]) -> tuple[Any, Exception] | None:
    """Return the first item that raises in this process too, with its exception; load from a copy if possible."""
    copy = copy_dataset(dataset)
    items = dataset if copy is None else copy
    for index in indices:
        try:
            items[index]
        except Exception as error:
            return index, error
    return None


def _index_list(indices: Sequence[Any]) -> str:
    text = ", ".join(map(repr, indices[:4]))
    return f"{text}, …" if len(indices) > 4 else text
