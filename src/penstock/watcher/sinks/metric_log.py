"""Whatever has `log(dict, step=…)`: a run of Weights & Biases, and those made in its image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from penstock.watcher.sinks.windowed import WindowSink, numbers
from penstock.watcher.window import WindowSummary


class MetricLogger(Protocol):
    """What wandb.init() returns, say."""

    def log(self, data: Mapping[str, float], *, step: int) -> Any:
        """Some numbers at a step."""
        ...


class MetricSink(WindowSink):
    """A dictionary per window.

    Such a run takes no number for a step that has passed, and drops what the training logs after a larger step: so
    ours go to the step it is at (`run.step`), where it says that, and only else to the loader's batches so far.
    """

    def __init__(self, run: MetricLogger, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__(window=window, slow_s=slow_s)
        self._log = run

    def window(self, summary: WindowSummary) -> None:
        """All numbers at once."""
        step = getattr(self._log, "step", None)
        self._log.log(numbers(summary), step=step if isinstance(step, int) else summary.total)
