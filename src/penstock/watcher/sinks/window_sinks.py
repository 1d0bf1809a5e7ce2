"""Sinks that write one summary per window of batches: JSON lines, Weights & Biases, TensorBoard, MLflow.

They take `window`, the number of batches in a window, which is rounded up to whole rounds of the workers, and `slow_s`,
the wait in seconds above which a batch counts as slow.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from penstock.errors import SettingError
from penstock.recording.format import AnyLine
from penstock.watcher.sinks.async_sink import AsyncSink
from penstock.watcher.window import BatchWindows, WindowSummary


class WindowSink(AsyncSink):
    """Base of the sinks that write one summary per window."""

    def __init__(self, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__()
        self._windows = BatchWindows(window, slow_s)

    @abstractmethod
    def write(self, summary: WindowSummary) -> None:
        """Write the summary of one window."""

    def handle(self, line: AnyLine) -> None:
        """Add the line to the window of its loader, and write the summary if the window is full."""
        summary = self._windows.put(line)
        if summary is not None:
            self.write(summary)

    def finish(self) -> None:
        """Write summaries of the windows that are not full, unless the receiver has failed before."""
        if not self.disabled:
            for summary in self._windows.rest():
                self.write(summary)


class TextFile(Protocol):
    """A text file, or an object with the same two methods."""

    def write(self, text: str, /) -> Any:
        """Write some text."""
        ...

    def flush(self) -> Any:
        """Write out what is buffered."""
        ...


class JsonLines(WindowSink):
    """A sink that writes one JSON object per window to a text file, which the user opens and closes."""

    def __init__(self, file: TextFile, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__(window=window, slow_s=slow_s)
        self._file = file

    def write(self, summary: WindowSummary) -> None:
        """Write the fields of the summary as one line, with one call."""
        self._file.write(msgspec.json.encode(summary).decode() + "\n")
        self._file.flush()


class MetricLogger(Protocol):
    """An object with the `log` method of a Weights & Biases run."""

    def log(self, data: Mapping[str, float], *, step: int) -> Any:
        """Log some numbers at a step."""
        ...


class MetricSink(WindowSink):
    """A sink that logs one dictionary per window to a Weights & Biases run or a similar logger.

    W&B refuses numbers for an earlier step, and after numbers for a later step it drops what the training logs. The
    numbers are therefore logged at the current step of the run (`run.step`). A logger without `step` gets the number of
    batches that the loader has delivered.
    """

    def __init__(self, run: MetricLogger, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__(window=window, slow_s=slow_s)
        self._logger = run

    def write(self, summary: WindowSummary) -> None:
        """Log all numbers of the summary at once."""
        step = getattr(self._logger, "step", None)
        self._logger.log(metrics(summary), step=step if isinstance(step, int) else summary.total)


class ScalarWriter(Protocol):
    """The method that is used of a SummaryWriter, either torch's or tensorboardX's."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Add one point to a plot."""
        ...


class TensorBoard(WindowSink):
    """A sink that adds scalars to a SummaryWriter, which the user makes and closes.

    The x axis is the number of batches that the loader has delivered.
    """

    def __init__(self, writer: ScalarWriter, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__(window=window, slow_s=slow_s)
        self._writer = writer

    def write(self, summary: WindowSummary) -> None:
        """Add one point per number of the summary."""
        for tag, value in metrics(summary).items():
            self._writer.add_scalar(tag, value, summary.total)


class MLflow(WindowSink):
    """A sink that logs metrics to a run of MLflow: the active one, or that with `run_id`.

    The run is found where the sink is made, because MLflow's active run belongs to the thread. The step is the number
    of batches that the loader has delivered.
    """

    def __init__(self, run_id: str | None = None, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__(window=window, slow_s=slow_s)
        try:
            import mlflow
        except ImportError as error:
            raise SettingError("mlflow is not installed", advice="Install it: pip install mlflow") from error
        active = mlflow.active_run() if run_id is None else None
        if run_id is None and active is None:
            raise SettingError("no run of MLflow is active", advice="Call mlflow.start_run() first, or give run_id")
        self._client = mlflow.MlflowClient()
        self._metric = mlflow.entities.Metric
        self._run_id = run_id if active is None else active.info.run_id

    def write(self, summary: WindowSummary) -> None:
        """Log all numbers of the summary with one request."""
        now_ms = int(time.time() * 1000)
        found = [
            self._metric(_MLFLOW_REFUSES.sub("_", name), value, now_ms, summary.total)
            for name, value in metrics(summary).items()
        ]
        self._client.log_batch(self._run_id, metrics=found)


_MLFLOW_REFUSES = re.compile(r"[^\w\-./ :]", re.ASCII)
"""Characters that the name of a metric may not have in MLflow."""


def metrics(summary: WindowSummary) -> dict[str, float]:
    """Return the numbers of a summary by the name of their plot, such as penstock/train/wait_mean_s."""
    loader = summary.name or f"loader{summary.loader}"
    return {f"penstock/{loader}/{name}": value for name, value in summary.numbers().items()}
