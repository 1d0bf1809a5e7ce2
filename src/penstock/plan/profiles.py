"""Profiles: how much speed to give up for fewer workers, and how much memory a plan may use.

Every number of a profile belongs to a stated model:

- *Tolerance* (`rate_tolerance`). The rate rises with the number of workers and then levels off, so the last few workers
  add next to nothing. Of all numbers whose predicted rate is within the tolerance of the best, the smallest is taken.
  `balanced` uses the variation between two runs of one training, `speed` the resolution of the simulator, `memory` the
  share of waiting up to which a diagnosis still calls a run healthy.
- *Memory* (`memory_share`). The system keeps the files that are read in free memory (the page cache), so a loader that
  takes all of it makes reading slower. `balanced` leaves half to the page cache, `speed` leaves only what the training
  itself may still grow by, and `memory` takes a quarter, as a penstock.Loader does by default.
- *Prefetch* (`max_prefetch`). Each prefetched batch is memory, and it helps only against batches that vary. Torch's own
  2 keeps workers of equal speed busy; `memory` stays there. More than MAX_PREFETCH never helps: a batch that is later
  than so many others holds up its own worker, whatever has been prefetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from penstock.core.plan import TORCH_PREFETCH_FACTOR, Profile
from penstock.diagnose.verdict import WAIT_SHARE_HEALTHY
from penstock.errors import SettingError

RUN_VARIATION = 0.03
"""Relative difference in rate between two runs of the same training."""
SIMULATOR_RESOLUTION = 0.005
"""Relative difference in the simulated rate when the same run begins at another batch."""
HEADROOM = 0.1
"""Share of the free memory by which a training may still grow after it was measured."""
MAX_PREFETCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileGoal:
    """The trade-off that one profile makes; the module docstring gives the reason for each number."""

    rate_tolerance: float
    """Share of the best rate that may be given up for fewer workers."""
    memory_share: float
    """Share of the free memory that the loader may take."""
    max_prefetch: int = MAX_PREFETCH
    saves_memory: bool = False
    """Whether a change is proposed for its memory alone."""


_GOALS: dict[Profile, ProfileGoal] = {
    "balanced": ProfileGoal(rate_tolerance=RUN_VARIATION, memory_share=1 / 2),
    "speed": ProfileGoal(rate_tolerance=SIMULATOR_RESOLUTION, memory_share=1 - HEADROOM),
    "memory": ProfileGoal(
        rate_tolerance=WAIT_SHARE_HEALTHY, memory_share=1 / 4, max_prefetch=TORCH_PREFETCH_FACTOR, saves_memory=True
    ),
}


def profile_goal(profile: Profile) -> ProfileGoal:
    """Return the goal of a profile; raise SettingError for an unknown name."""
    if profile not in _GOALS:
        raise SettingError(f"profile {profile!r} is not known", advice=f"Use {', '.join(_GOALS)}")
    return _GOALS[profile]


def smallest_within(
    rate: Callable[[int], float], candidates: Iterable[int], tolerance: float, *, refine: bool = True
) -> int:
    """Return the smallest number whose rate is within `tolerance` of the best rate of the candidates.

    With `refine` the numbers between two candidates count too: the rate is assumed to rise between the largest
    candidate that is too slow and the smallest that is fast enough, and that range is bisected.
    """
    rates = {number: rate(number) for number in sorted(set(candidates))}
    if not rates:
        raise SettingError("there is no number to choose from")
    best = max(rates.values())
    enough = best if best == inf else (1 - tolerance) * best
    high = min(number for number, number_rate in rates.items() if number_rate >= enough)
    low = max((number for number in rates if number < high), default=high)
    while refine and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rate(middle) >= enough else (middle, high)
    return high
