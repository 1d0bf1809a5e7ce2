"""Reports about a loader: the time of each hop, a status line every few seconds, a progress bar."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.hops import Hop
from penstock.core.stats import LoaderStats
from penstock.report.text import status_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_S = 5.0
"""Seconds between two status lines."""


class DeliveryTimer:
    """A timer for the consumer's side of the hops: it waits for a batch, delivers it, and runs the training step."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.samples = self.batches = 0
        """Delivered since the loader was made."""
        self._clock = clock
        self._waited_s = self._delivering_s = self._step_s = 0.0
        self._lap_start = clock.now()

    def begin(self) -> None:
        """Note that an epoch begins."""
        self._lap_start = self._clock.now()

    def waited(self) -> None:
        """Note that the engine has delivered a batch."""
        self._waited_s += self._lap()

    def delivered(self, samples: int) -> None:
        """Note that a batch of that many samples goes to the training loop."""
        self._delivering_s += self._lap()
        self.samples += samples
        self.batches += 1

    def returned(self) -> None:
        """Note that the training loop requests the next batch."""
        self._step_s += self._lap()

    def _lap(self) -> float:
        start, self._lap_start = self._lap_start, self._clock.now()
        return self._lap_start - start

    def hops(self) -> tuple[Hop, Hop]:
        """Return the hop of delivery, and that of the training loop's step."""
        deliver = Hop("deliver", self._delivering_s, self._waited_s, self._step_s)
        return deliver, Hop("step", self._step_s, self._waited_s + self._delivering_s)


class StatusTicker:
    """Prints a status line on stderr every few seconds, about the time since the last one."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._next = clock.now() + LINE_S
        self._last: LoaderStats | None = None

    @property
    def due(self) -> bool:
        """Whether it is time for a line."""
        return self._clock.now() >= self._next

    def show(self, stats: LoaderStats) -> None:
        """Print a line, and begin the next interval."""
        print(status_line(stats, self._last), file=sys.stderr, flush=True)
        self._last = stats
        self._next = self._clock.now() + LINE_S


class EpochBar:
    """A progress bar over the samples of an epoch, on stderr."""

    def __init__(self, epoch: int, start: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress: Progress = Progress(console=Console(stderr=True))
        self._task: TaskID = self._progress.add_task(f"epoch {epoch}", total=total, completed=start)
        self._progress.start()

    def update(self, samples: int) -> None:
        """Show that this many samples of the epoch are delivered."""
        self._progress.update(self._task, completed=samples)

    def close(self) -> None:
        """Stop updating, and leave the bar as it is."""
        self._progress.stop()
