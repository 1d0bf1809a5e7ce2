"""What is given away for what: profiles, and what starting workers costs on each platform.

No number here stands for itself; each belongs to a stated model:

- *As good as the best* (`give_away`). Rates rise with the number of workers and then stay, so the last few workers give
  next to nothing. Of all numbers whose predicted rate is within `give_away` of the best, the smallest is taken:
  `balanced` calls alike what two runs of one training differ by anyway, `speed` what the simulator itself cannot tell
  apart, `memory` goes as low as a run may wait and still be called healthy.
- *The page cache gets the rest* (`memory_share`). Free memory is where the system keeps the files that are read, so a
  loader that takes all of it makes reading slower. `balanced` halves it with the cache; `speed` leaves what the
  training itself may still grow by; `memory` takes what a penstock.Loader takes without being told, a quarter.
- *Prefetch is for variance* (`most_prefetch`). Each batch ahead is memory. Torch's own 2 keeps workers of equal speed
  busy; `memory` leaves it there. Nobody gains by more than MOST_PREFETCH: a batch that is late by more than so many
  others holds its own worker up, whatever lies ahead.
- *A start is paid once an epoch* (`amortised`). See `WorkerStartCost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from penstock.core.plan import Profile
from penstock.diagnose.verdict import WAIT_SHARE_HEALTHY
from penstock.errors import SettingError

RUN_TO_RUN = 0.03
"""Two runs of the same training differ by about this."""
GRAIN = 0.005
"""The simulator's: the same run begun at another batch gives a rate that differs by this."""
HEADROOM = 0.1
"""Of the free memory, that a training still grows by after it was looked at."""
USUAL_PREFETCH = 2
"""Torch's own: one batch at the worker, one to follow."""
MOST_PREFETCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileGoal:
    """What a profile asks for; the module says by which model."""

    give_away: float
    """Of the best rate, for fewer workers."""
    memory_share: float
    """Of what is free."""
    most_prefetch: int = MOST_PREFETCH
    saves_memory: bool = False
    """Whether a change is worth making for its memory alone."""


_MANNERS: dict[Profile, ProfileGoal] = {
    "balanced": ProfileGoal(give_away=RUN_TO_RUN, memory_share=1 / 2),
    "speed": ProfileGoal(give_away=GRAIN, memory_share=1 - HEADROOM),
    "memory": ProfileGoal(
        give_away=WAIT_SHARE_HEALTHY, memory_share=1 / 4, most_prefetch=USUAL_PREFETCH, saves_memory=True
    ),
}


def profile_goal(profile: Profile) -> ProfileGoal:
    """Of a profile by its name."""
    if profile not in _MANNERS:
        raise SettingError(f"profile {profile!r} is not known", advice=f"Use {', '.join(_MANNERS)}")
    return _MANNERS[profile]


def smallest_within(
    rate: Callable[[int], float], numbers: Iterable[int], give_away: float, *, every: bool = True
) -> int:
    """The smallest number whose rate is within `give_away` of the best of these numbers.

    `every`: those between them count, too. Between the largest that is too small and the smallest that is enough the
    rate is taken to rise, and halves of that range are asked.
    """
    rates = {number: rate(number) for number in sorted(set(numbers))}
    if not rates:
        raise SettingError("there is no number to choose from")
    best = max(rates.values())
    enough = best if best == inf else (1 - give_away) * best
    high = min(number for number, found in rates.items() if found >= enough)
    low = max((number for number in rates if number < high), default=high)
    while every and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rate(middle) >= enough else (middle, high)
    return high


def counts(most: int) -> tuple[int, ...]:
    """0 to `most`, every one of the first and then each a quarter more than the last: rates flatten out."""
    found = list(range(min(most, 8) + 1))
    while found[-1] < most:
        found.append(min(most, found[-1] * 5 // 4))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class WorkerStartCost:
    """What starting workers costs.

    Torch starts them one after the other, before the first batch. `spawn` (macOS, Windows) runs an interpreter, every
    import of the script and a pickled copy of the dataset in each; `fork` (Linux) copies page tables. So it is
    workers × `each_s` in both cases, and only the measured `each_s` tells the platforms apart.
    """

    each_s: float
    """Measured: see `measured`."""

    @classmethod
    def measured(cls, first_wait_s: float, usual_wait_s: float, making_s: float, workers: int) -> WorkerStartCost:
        """From the first wait of a pass: what is more than a usual wait and the making of one batch, per worker."""
        return cls(max(0.0, first_wait_s - usual_wait_s - making_s) / workers if workers > 0 else 0.0)

    def seconds(self, workers: int) -> float:
        """Before the first batch of a pass."""
        return workers * self.each_s


def amortised(batches_s: float, start_s: float, batches: int | None) -> float:
    """The rate over an epoch of so many batches that begins with a start; as it is where nobody knows its length."""
    if not batches or start_s <= 0:
        return batches_s
    return batches / (batches / batches_s + start_s)


def spawns(platform: str) -> bool:
    """Whether workers are new interpreters there unless told otherwise; `platform` begins with the system's name."""
    return platform.startswith(("Windows", "Darwin"))
