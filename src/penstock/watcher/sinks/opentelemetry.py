"""A sink that records every step with OpenTelemetry's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from penstock.recording.format import AnyLine, FetchLine, LoaderLine, StepLine
from penstock.watcher.rank_files import rank_and_world
from penstock.watcher.sinks.async_sink import AsyncSink
from penstock.watcher.window import BatchWindows


class Meter(Protocol):
    """The methods that are used of an `opentelemetry.metrics.Meter`."""

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        """Return an instrument with the method `add`."""
        ...

    def create_histogram(self, name: str, unit: str = "", description: str = "") -> Any:
        """Return an instrument with the method `record`."""
        ...


class OpenTelemetry(AsyncSink):
    """A sink that records waits, steps and batches of workers as histograms, and samples and slow batches as counters.

    `meter` is that of the application's own provider, which exports them:

        OpenTelemetry(opentelemetry.metrics.get_meter("penstock"))

    The attributes are `loader`, `rank` and, where it is known, `worker`. `slow_s` is the wait in seconds above which a
    batch counts as slow; by default it follows from the run itself.
    """

    line_types: ClassVar[tuple[type, ...]] = (LoaderLine, StepLine, FetchLine)

    def __init__(self, meter: Meter, *, slow_s: float | None = None) -> None:
        super().__init__()
        self._windows = BatchWindows(slow_s=slow_s)
        self._rank = rank_and_world()[0]
        self._wait = meter.create_histogram("penstock.batch.wait", "s", "Wait of the training loop for a batch")
        self._step = meter.create_histogram("penstock.batch.step", "s", "Work of the training loop on a batch")
        self._fetch = meter.create_histogram("penstock.worker.batch", "s", "Time of a worker for a batch")
        self._samples = meter.create_counter("penstock.samples", "{sample}", "Samples that were delivered")
        self._slow = meter.create_counter("penstock.slow_batches", "{batch}", "Batches with an unusually long wait")

    def handle(self, line: AnyLine) -> None:
        """Record a step, or a batch as its worker made it."""
        if isinstance(line, LoaderLine):
            self._windows.add_loader(line)
        elif isinstance(line, StepLine):
            slow, _ = self._windows.of(line.loader).add(line)
            attributes = self._attributes(line.loader, line.worker)
            self._wait.record(line.wait_s, attributes)
            self._step.record(line.step_s, attributes)
            self._samples.add(line.samples or 0, attributes)
            self._slow.add(int(slow), attributes)
        elif isinstance(line, FetchLine):
            self._fetch.record(line.fetch_s, self._attributes(line.loader, line.worker))

    def finish(self) -> None:
        """Do nothing: the application's provider exports what was recorded."""

    def _attributes(self, loader: int, worker: int | None) -> Mapping[str, str | int]:
        name = self._windows.of(loader).name or f"loader{loader}"
        known = {} if worker is None or worker < 0 else {"worker": worker}
        return {"loader": name, "rank": self._rank, **known}
