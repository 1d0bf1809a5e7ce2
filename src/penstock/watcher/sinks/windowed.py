"""What the sinks that speak once a window have in common."""

from __future__ import annotations

from abc import abstractmethod

from penstock.recording.format import AnyLine
from penstock.watcher.sinks.async_sink import AsyncSink
from penstock.watcher.window import BatchWindows, WindowSummary


class WindowSink(AsyncSink):
    """`window`: batches of a window, rounded up to whole rounds of the workers; `slow_s`: a longer wait is slow."""

    def __init__(self, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__()
        self._windows = BatchWindows(window, slow_s)

    @abstractmethod
    def window(self, summary: WindowSummary) -> None:
        """A window is full, or the run has ended."""

    def take(self, line: AnyLine) -> None:
        """Until the window is full."""
        summary = self._windows.put(line)
        if summary is not None:
            self.window(summary)

    def end(self) -> None:
        """What the last windows have so far; nothing where the receiver failed before."""
        if not self.off:
            for summary in self._windows.rest():
                self.window(summary)


def numbers(summary: WindowSummary) -> dict[str, float]:
    """Under the names they are plotted by: penstock/train/wait_mean_s."""
    whose = summary.name or f"loader{summary.loader}"
    return {f"penstock/{whose}/{name}": value for name, value in summary.numbers().items()}
