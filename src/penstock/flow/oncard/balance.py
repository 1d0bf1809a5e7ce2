"""Who is waited for, batch by batch; from time to time that turns how many pictures the card gets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.flow.fields.dial import Dial
from penstock.flow.oncard.sharing import Sharing, Window

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


class Balance:
    """Told by whoever sends batches to the card and receives them, in the loop's thread."""

    def __init__(self, shared: Sequence[tuple[Dial, Sharing]] = (), clock: Clock = SYSTEM_CLOCK) -> None:
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
        for dial, sharing in self._shared:
            sharing.seen(window)
            if sharing.share != dial.value:
                log.debug("%.0f%% of the pictures to the card: %s", 100 * sharing.share, window)
                dial.value = sharing.share
                self._settling = SETTLING
        self._stalled_s = stalled_s
        self._batches.clear()

    def _window(self, stalled_s: float) -> Window:
        periods, cores, card = (sorted(column)[:-1] for column in zip(*self._batches, strict=True))
        seconds = sum(periods)
        return Window(
            sum(cores) / seconds,
            sum(card) / seconds,
            seconds / len(periods),
            stalled_s / sum(batch.period_s for batch in self._batches),
        )
