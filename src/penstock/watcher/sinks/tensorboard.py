"""Scalars for TensorBoard."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.watcher.sinks.windowed import WindowSink, numbers
from penstock.watcher.window import WindowSummary


class ScalarWriter(Protocol):
    """What we ask of a SummaryWriter, torch's or tensorboardX's."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """One point."""
        ...


class TensorBoard(WindowSink):
    """Into a SummaryWriter that the user made and will close; plotted over the loader's batches so far."""

    def __init__(self, writer: ScalarWriter, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__(window=window, slow_s=slow_s)
        self._writer = writer

    def window(self, summary: WindowSummary) -> None:
        """One point per number."""
        for tag, value in numbers(summary).items():
            self._writer.add_scalar(tag, value, summary.total)
