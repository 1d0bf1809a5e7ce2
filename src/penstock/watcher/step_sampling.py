"""Decides which steps are profiled, that is which steps have their phases timed by the hooks.

To profile a step costs the training loop's thread about thirty calls whose code is not in the CPU's caches, a tenth of
a millisecond, and more where the loop slept before. Beside a long step that is negligible. Of short steps only one in
INTERVAL is profiled, at a random place among them: work that a script does every eighth or every hundredth step is then
met about as often as it occurs.
All ranks draw the same places, so they profile the same steps.
"""

from __future__ import annotations

from random import Random

FIRST_OF_LOADER = 64
"""The first steps of a loader are all profiled, so that a short run is measured completely."""
FIRST_OF_EPOCH = 3
"""The first steps of every epoch are all profiled."""
INTERVAL = 128
"""Number of consecutive short steps of which one is profiled: of steps of 10 ms, one in 1.3 s."""
AVERAGED_STEPS = 32
"""Number of steps over which the time of a step is averaged."""
LONG_S = 0.05
"""Steps that take this many seconds, from batch to batch, are all profiled."""
MAX_UNPROFILED_S = INTERVAL * LONG_S
"""Seconds after a profiled step after which the next step is profiled in any case: steps may have become long."""
_PLACES = tuple(Random(0).choices(range(INTERVAL), k=509))
"""The place of the profiled step in each interval; after the last one, they begin again."""


class StepSampling:
    """The choice of profiled steps of one loader, over all its epochs."""

    def __init__(self) -> None:
        self._steps_before = 0
        """Steps of the earlier epochs."""
        self._last_profiled = 0
        """Index of the last profiled step in this epoch."""
        self._last_profiled_s = 0.0
        """When that step began."""
        self._cycle_s = 0.0
        """Seconds from batch to batch, averaged over about the last AVERAGED_STEPS; 0 until it is known."""

    def unprofiled_after(self, batch: int, now: float) -> int:
        """Return how many steps after this profiled one are not profiled.

        `batch` is the index of the step in its epoch, `now` its start in seconds on any clock.
        """
        steps = max(1, batch - self._last_profiled)
        if batch > 1:  # an earlier cycle includes the start of the workers
            weight = min(1.0, steps / AVERAGED_STEPS) if self._cycle_s else 1.0
            self._cycle_s += ((now - self._last_profiled_s) / steps - self._cycle_s) * weight
        self._last_profiled, self._last_profiled_s = batch, now
        step = self._steps_before + batch
        if step + 1 < FIRST_OF_LOADER or batch + 1 < FIRST_OF_EPOCH or self._cycle_s >= LONG_S:
            return 0
        return _next_drawn(step) - step - 1

    def end_epoch(self, steps: int) -> None:
        """Note that an epoch has ended after so many steps."""
        self._steps_before += steps
        self._last_profiled = 0


def _next_drawn(step: int) -> int:
    """Return the first drawn step after this one; both are counted over all epochs."""
    interval = step // INTERVAL
    while (drawn := interval * INTERVAL + _PLACES[interval % len(_PLACES)]) <= step:
        interval += 1
    return drawn
