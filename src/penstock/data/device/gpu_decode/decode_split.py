"""How many of the pictures the card decodes, while both sides work: turned by what makes batches come sooner. Pure.

The cores work ahead of the loop, so where it has to wait for them they do all they can, and the card could do more.
Where it finds its batches complete and waits for the card, the card has too much. That says where to try first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.data.fields.gpu_image import SharedFraction

WAITED = 0.05
"""Of the time, for one side: less is chance."""
FIRST_STEP, LEAST_STEP, MOST_STEP = 0.1, 0.025, 0.2
"""Of the pictures, moved at a time."""
GROWTH = 1.25
"""Of a step, from one to the next in the same direction."""
QUIET, MOST_QUIET = 6, 96
"""Windows without a try after the smallest step was in vain; each time it is, twice as many."""
STALLED, UNSTALLED = 0.03, 0.005
"""Of its time, the card has nothing to do for the training: then more, or less, than this is worth a move."""
LEAST_GAIN = 0.01
"""Of the time from batch to batch: a move that brings less is undone."""
LOST = 0.1
"""Of it: if batches come so much later than when all was quiet, one side has become another, and steps are large."""
FIRST_REST, MOST_REST = 8, 256
"""Windows without another try after one that was in vain; each time it is, twice as many."""

Way = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class SplitWindow:
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


class SplitPolicy(Protocol):
    """Decides for one field."""

    share: float
    """Of the pictures, for the card."""

    def seen(self, window: SplitWindow) -> None:
        """Turn it, or leave it; windows lie far enough apart to show what the last turn did."""
        ...


class HybridSplit:
    """Whatever makes batches come soonest, found by trying: a step that brings nothing is undone, the next one is half
    as long and goes the other way.

    Not the share with which both sides finish together: cores that decode slow down those that the card needs for its
    own part, so that the best share leaves some of them idle.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._step = FIRST_STEP
        self._way: Way = 0
        self._tried: tuple[float, float] | None = None
        """The share and the period before the last step, until it is judged."""
        self._quiet = 0
        """Windows until the next try."""
        self._patience = QUIET
        self._quiet_s = 0.0
        """The period when that began."""

    def seen(self, window: SplitWindow) -> None:
        """Judge the last step, or take another."""
        tried, self._tried = self._tried, None
        if not window.way:
            return
        if tried is not None and window.period_s > (1 - LEAST_GAIN) * tried[1]:
            self._undo(*tried)
            return
        if tried is not None:
            self._step = min(MOST_STEP, GROWTH * self._step)
        elif self._quiet and window.period_s > (1 + LOST) * self._quiet_s:
            self._quiet, self._patience, self._way = 0, QUIET, window.way
        elif self._quiet:
            self._quiet -= 1
            self._step = FIRST_STEP  # what small steps bring cannot be told from chance
            return
        self._try(window)

    def _try(self, window: SplitWindow) -> None:
        self._way = self._way or window.way
        if self.share == (1.0 if self._way > 0 else 0.0):
            self._way = -self._way  # there is nothing beyond the end
        self._tried = self.share, window.period_s
        self.share = min(1.0, max(0.0, self.share + self._way * self._step))

    def _undo(self, share: float, period_s: float) -> None:
        self.share = share
        self._way = -self._way
        if self._step == LEAST_STEP:
            self._quiet, self._quiet_s = self._patience, period_s
            self._patience = min(MOST_QUIET, 2 * self._patience)
        self._step = max(LEAST_STEP, self._step / 2)


class AutoSplit:
    """The cores decode, and the card helps where that makes batches come sooner, its own slower steps counted in.

    Every move is judged by the next window, and undone if it was in vain.
    """

    def __init__(self, most: float) -> None:
        self.share = 0.0
        self._most = most
        self._longest = most
        """A move up: half as long after each that was in vain."""
        self._tried: tuple[float, float] | None = None
        """The share before the last move, and what the period may be at most for that to stay."""
        self._rest = 0
        """Windows until the next move."""
        self._patience = FIRST_REST

    def seen(self, window: SplitWindow) -> None:
        """Up where the training stalls for want of the cores; down where it does not stall, or the card is late."""
        tried, self._tried = self._tried, None
        if tried is not None and window.period_s > tried[1]:
            self._undo(tried[0])
        elif self._rest:
            self._rest -= 1
        elif window.stalled > STALLED:
            self._hasten(window)
        elif self.share and window.stalled < UNSTALLED:
            self._move(-FIRST_STEP, (1 + LEAST_GAIN) * window.period_s)

    def _hasten(self, window: SplitWindow) -> None:
        sooner_s = (1 - LEAST_GAIN) * window.period_s
        if window.way > 0 and self.share < self._most:
            enough = (1 - self.share) * window.stalled  # cores that have so much less to do are as quick as the step
            self._move(min(self._longest, max(FIRST_STEP, enough)), sooner_s)
        elif window.way < 0 and self.share:
            self._move(-FIRST_STEP, sooner_s)

    def _move(self, by: float, most_s: float) -> None:
        self._tried = self.share, most_s
        self.share = min(self._most, max(0.0, self.share + by))

    def _undo(self, share: float) -> None:
        self._longest = max(FIRST_STEP, self._longest / 2) if share < self.share else self._longest
        self.share = share
        self._rest, self._patience = self._patience, min(MOST_REST, 2 * self._patience)


class FixedSplit:
    """There is nothing to decide."""

    def __init__(self, share: float) -> None:
        self.share = share

    def seen(self, window: SplitWindow) -> None:
        """As it was."""


log = logging.getLogger("penstock")

SETTLING = 12
"""Batches after a turn that were made before it, most of them."""
COUNTED = 16
"""Batches in a window, at least."""
COUNTED_S = 0.4
"""And it lasts so long."""


class _Batch(NamedTuple):
    period_s: float
    """Since the one before."""
    cores_s: float
    card_s: float


class SplitController:
    """Told by whoever sends batches to the card and receives them, in the loop's thread."""

    def __init__(self, shared: Sequence[tuple[SharedFraction, SplitPolicy]] = (), clock: Clock = SYSTEM_CLOCK) -> None:
        self.settled: Callable[[], bool] = lambda: True
        """Whether all workers are there: until then it is no wonder that the loop waits for the cores."""
        self._shared = shared
        self._clock = clock
        self._asked_at = self._cores_s = 0.0
        self._last = clock.now()
        self._stalled_s = 0.0
        """The card's sum when the window began."""
        self._batches: list[_Batch] = []
        self._settling = SETTLING

    def asked(self) -> None:
        """A batch is about to be asked of the cores."""
        self._asked_at = self._clock.now()

    def sent(self, *, ahead: bool) -> None:
        """It has come, and is on its way; ahead of the loop if it has not got the one before."""
        if not ahead:
            self._cores_s = self._clock.now() - self._asked_at

    def received(self, waited_s: float, stalled_s: Callable[[], float]) -> None:
        """The loop has it, after so long; the card's sum of stalls is asked for at the end of a window."""
        now = self._clock.now()
        batch = _Batch(now - self._last, self._cores_s, waited_s)
        self._last, self._cores_s = now, 0.0
        if not self.settled():
            self._settling = SETTLING
            self._batches.clear()
        elif self._settling:
            self._settling -= 1
            if not self._settling:
                self._stalled_s = stalled_s()
        else:
            self._batches.append(batch)
            if len(self._batches) >= COUNTED and sum(batch.period_s for batch in self._batches) >= COUNTED_S:
                self._turn(stalled_s())

    def _turn(self, stalled_s: float) -> None:
        window = self._window(stalled_s - self._stalled_s)
        for gpu_fraction, sharing in self._shared:
            sharing.seen(window)
            if sharing.share != gpu_fraction.value:
                log.debug("%.0f%% of the pictures to the card: %s", 100 * sharing.share, window)
                gpu_fraction.value = sharing.share
                self._settling = SETTLING
        self._stalled_s = stalled_s
        self._batches.clear()

    def _window(self, stalled_s: float) -> SplitWindow:
        periods, cores, card = (sorted(column)[:-1] for column in zip(*self._batches, strict=True))
        seconds = sum(periods)
        return SplitWindow(
            sum(cores) / seconds,
            sum(card) / seconds,
            seconds / len(periods),
            stalled_s / sum(batch.period_s for batch in self._batches),
        )
