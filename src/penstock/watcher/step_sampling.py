"""Which steps have their phases looked at.

Looking at one costs the loop's thread some thirty calls whose code is never warm: a tenth of a millisecond. Beside a
long step that is nothing. Of every thirty-two short ones, one is looked at, drawn by lot: what a script does every
eighth or hundredth step is met neither each time nor never. All ranks draw the same lots, so they look at the same
steps.
"""

from __future__ import annotations

from random import Random

YOUNG = 64
"""Steps of a loader of which each is looked at: a short run is seen whole."""
OPENING = 3
"""And so many of every pass."""
BLOCK = 32
"""Short steps of which one is looked at."""
LONG_S = 0.05
"""From batch to batch: steps that take so long are all looked at."""
PATIENCE_S = 1.6
"""After this time the next step is looked at in any case: they may have become long."""
_LOTS = tuple(Random(0).choices(range(BLOCK), k=509))
"""Places in a block."""


class StepSampling:
    """Of the steps of one loader."""

    def __init__(self) -> None:
        self._before = 0
        """Steps of the passes that are over."""
        self._last = 0
        """The last step that was looked at, of this pass."""
        self._at = 0.0
        self._cycle_s = 0.0
        """From batch to batch, over the last block."""

    def unlooked_after(self, number: int, now: float) -> int:
        """A step of that number in its pass begins, and is looked at: how many after it are not."""
        steps = max(1, number - self._last)
        if number > 1:  # before that is the start of workers
            share = min(1.0, steps / BLOCK) if self._cycle_s else 1.0
            self._cycle_s += ((now - self._at) / steps - self._cycle_s) * share
        self._last, self._at = number, now
        at = self._before + number
        if at + 1 < YOUNG or number + 1 < OPENING or self._cycle_s >= LONG_S:
            return 0
        return _next_lot(at) - at - 1

    def ended(self, steps: int) -> None:
        """A pass, after so many."""
        self._before += steps
        self._last = 0


def _next_lot(number: int) -> int:
    """The next step that is drawn, after that one."""
    block = number // BLOCK
    while (lot := block * BLOCK + _LOTS[block % len(_LOTS)]) <= number:
        block += 1
    return lot
