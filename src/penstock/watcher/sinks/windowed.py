"""What the sinks that speak once a window have in common."""

from __future__ import annotations

from abc import abstractmethod

from penstock.recording.format import AnyLine
from penstock.watcher.sinks.async_sink import Aside
from penstock.watcher.window import Summary, Windows


class Windowed(Aside):
    """`window`: batches of a window, rounded up to whole rounds of the workers; `slow_s`: a longer wait is slow."""

    def __init__(self, *, window: int | None = None, slow_s: float | None = None) -> None:
        super().__init__()
        self._windows = Windows(window, slow_s)

    @abstractmethod
    def window(self, summary: Summary) -> None:
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


def numbers(summary: Summary) -> dict[str, float]:
    """Under the names they are plotted by: penstock/train/wait_mean_s."""
    whose = summary.name or f"loader{summary.loader}"
    return {f"penstock/{whose}/{name}": value for name, value in summary.numbers().items()}
