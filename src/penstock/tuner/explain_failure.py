"""Why nothing could be measured, in words: which item it was, or what is wrong with the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import PenstockError, SampleError, SettingError, WorkerCrash
from penstock.tuner.dataset_copy import copy_dataset
from penstock.tuner.trials import SettingTrials, one_line
from penstock.tuner.worker_cost import FetchFailed, StartFailed

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
