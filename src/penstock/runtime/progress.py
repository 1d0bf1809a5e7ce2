"""What a loader says of itself: where each pass's time went, a status line now and then, a progress bar when asked."""

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
"""Between two status lines."""


class DeliveryTimer:
    """The consumer's side of the hops: it waits for a batch, delivers it, and is away with it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.samples = self.batches = 0
        self._clock = clock
        self._waited_s = self._delivering_s = self._away_s = 0.0
        self._at = clock.now()

    def begin(self) -> None:
        """A pass begins."""
        self._at = self._clock.now()

    def waited(self) -> None:
        """The engine has handed a batch over."""
        self._waited_s += self._lap()

    def delivered(self, samples: int) -> None:
        """It goes to the training loop."""
        self._delivering_s += self._lap()
        self.samples += samples
        self.batches += 1

    def returned(self) -> None:
        """The training loop wants the next one."""
        self._away_s += self._lap()

    def _lap(self) -> float:
        since, self._at = self._at, self._clock.now()
        return self._at - since

    def hops(self) -> tuple[Hop, Hop]:
        """Delivering, and the training loop's step."""
        deliver = Hop("deliver", self._delivering_s, self._waited_s, self._away_s)
        return deliver, Hop("step", self._away_s, self._waited_s + self._delivering_s)


class StatusTicker:
    """A status line on stderr every few seconds, of what happened since the last one."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._next = clock.now() + LINE_S
        self._last: LoaderStats | None = None

    @property
    def due(self) -> bool:
        """Whether it is time for a line."""
        return self._clock.now() >= self._next

    def show(self, stats: LoaderStats) -> None:
        """Print one."""
        print(status_line(stats, self._last), file=sys.stderr, flush=True)
        self._last = stats
        self._next = self._clock.now() + LINE_S


class EpochBar:
    """A progress bar over the samples of a pass, on stderr."""

    def __init__(self, epoch: int, start: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress: Progress = Progress(console=Console(stderr=True))
        self._task: TaskID = self._progress.add_task(f"epoch {epoch}", total=total, completed=start)
        self._progress.start()

    def at(self, samples: int) -> None:
        """So many of the epoch are delivered."""
        self._progress.update(self._task, completed=samples)

    def close(self) -> None:
        """Leave it as it stands."""
        self._progress.stop()
