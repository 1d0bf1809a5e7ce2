"""A function that draws batches, as nanoGPT's `get_batch` does: each call of it is the wait of a step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from penstock.recording.format import LoaderLine
from penstock.watcher.loader_views import count_samples
from penstock.watcher.session import StepTracker
from penstock.watcher.start import WatchedRun

P = ParamSpec("P")
T = TypeVar("T")


class WatchedFunction(Generic[P, T]):
    """A watched batch function, called instead of the function. Calls without gradients are an evaluation."""

    def __init__(self, function: Callable[P, T], name: str, run: WatchedRun) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name = name or getattr(function, "__name__", "")
        self.session = run.session
        self._numbers: dict[bool, int] = {}
        """Number of the loader that stands for the training, and for the evaluation."""
        self._training: StepTracker | None = None
        self._evaluation: StepTracker | None = None
        self._evaluations = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Draw a batch, and note its request and its arrival."""
        session = self.session
        if session.off:
            return self._function(*args, **kwargs)
        tracker = None
        with session.guard():
            tracker = self._tracker()
            tracker.batch_requested()
        session.waiting = True
        try:
            batch = self._function(*args, **kwargs)
        finally:
            session.waiting = False
        if tracker is not None and not session.off:
            with session.guard():
                tracker.batch_received(batch)
        return batch

    def _tracker(self) -> StepTracker:
        torch = sys.modules.get("torch")
        if torch is not None and not torch.is_grad_enabled():
            if self._evaluation is None:
                self._evaluation = self._begin(self._evaluations, evaluation=True)
                self._evaluations += 1
            return self._evaluation
        if self._evaluation is not None:
            self._evaluation.end()
            self._evaluation = None
        if self._training is None:
            self._training = self._begin(0, evaluation=False)
        return self._training

    def _begin(self, epoch: int, *, evaluation: bool) -> StepTracker:
        if evaluation not in self._numbers:
            self._numbers[evaluation] = number = self.session.new_loader_number()
            name = f"{self._name}, evaluation" if evaluation else self._name
            self.session.put(LoaderLine(loader=number, name=name, type="function"))
        return self.session.begin_epoch(self._numbers[evaluation], epoch, count_samples)
