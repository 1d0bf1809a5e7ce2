"""How many of the pictures the card decodes, while both sides work: turned by who is waited for. Pure.

The cores work ahead of the loop, so where it has to wait for them they do all they can, and the card could do more.
Where it finds its batches complete and waits for the card, the card has too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

WAITED = 0.05
"""Of the time, for one side: less is chance."""
FIRST_STEP, LEAST_STEP, MOST_STEP = 0.1, 0.02, 0.2
"""Of the pictures, moved at a time."""
GROWTH = 1.25
"""Of a step, from one to the next in the same direction."""
HELD = 6
"""Windows in which what was moved to the card stays there."""
STALLED, UNSTALLED = 0.03, 0.005
"""Of its time, the card has nothing to do for the training: then more, or less, than this is worth a move."""
LEAST_GAIN = 0.01
"""Of the time from batch to batch: a move that brings less is undone."""
FIRST_REST, MOST_REST = 8, 256
"""Windows without another try after one that was in vain; each time it is, twice as many."""

Way = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class Window:
    """Some batches, one after the other. The longest wait and period are left out: a pass may have begun."""

    cores: float
    """Of the time, the loop waited for a batch that the cores had not made."""
    card: float
    """Of the time, it waited for one that the card had not decoded: its own time with a late batch counts here too."""
    period_s: float
    """From one batch to the next, the loop's own work included."""
    stalled: float
    """Of the time, the card had nothing to do for the training."""

    @property
    def way(self) -> Way:
        """1: more for the card; -1: less; 0: the loop waits for neither."""
        if self.cores > WAITED:
            return 1
        return -1 if self.card > WAITED else 0


class Sharing(Protocol):
    """Decides for one field."""

    share: float
    """Of the pictures, for the card."""

    def seen(self, window: Window) -> None:
        """Turn it, or leave it; windows lie far enough apart to show what the last turn did."""
        ...


class Hybrid:
    """Both sides are to finish together: steps grow while one side stays late, and halve when the other one is.

    Waiting for the card costs little more than it must, but a batch that the cores have not made keeps both sides
    waiting. So what was moved to the card stays there for a while.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._step = FIRST_STEP
        self._way: Way = 0
        self._held = 0
        """Windows until it may go down again."""

    def seen(self, window: Window) -> None:
        """Towards whoever is not late."""
        way = window.way
        if way < 0 and self._held:
            self._held -= 1
        elif way:
            if self._way:
                self._step = min(MOST_STEP, GROWTH * self._step) if way == self._way else self._step / 2
            self._step = max(LEAST_STEP, self._step)
            self._way = way
            self._held = HELD if way > 0 else 0
            self.share = min(1.0, max(0.0, self.share + way * self._step))


class Auto:
    """The cores decode, and the card helps where that makes batches come sooner, its own slower steps counted in."""

    def __init__(self, most: float) -> None:
        self.share = 0.0
        self._most = most
        self._tried: tuple[float, float] | None = None
        """The share and the period before the last step up, until it is judged."""
        self._rest = 0
        """Windows until the next try."""
        self._patience = FIRST_REST

    def seen(self, window: Window) -> None:
        """Up where the training stalls for want of the cores; down where it does not stall, or the card is late."""
        if self._tried is not None:
            self._judge(window)
        elif self._rest:
            self._rest -= 1
        elif window.stalled > STALLED and window.way > 0 and self.share < self._most:
            self._tried = self.share, window.period_s
            self.share = min(self._most, self.share + FIRST_STEP)
        elif self.share and (window.way < 0 or window.stalled < UNSTALLED):
            self.share = max(0.0, self.share - FIRST_STEP)

    def _judge(self, window: Window) -> None:
        """Whether the stall that was removed is more than what the step has become slower by."""
        assert self._tried is not None
        (before, period_s), self._tried = self._tried, None
        if window.period_s > (1 - LEAST_GAIN) * period_s:
            self.share = before
        elif window.stalled > STALLED:
            return  # it pays, and there is more to be had
        self._rest, self._patience = self._patience, min(MOST_REST, 2 * self._patience)


class Fixed:
    """There is nothing to decide."""

    def __init__(self, share: float) -> None:
        self.share = share

    def seen(self, window: Window) -> None:
        """As it was."""
