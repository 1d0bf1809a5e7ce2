"""Which numbers of workers to measure, and which of the measured settings to take. Pure: rates in, settings out."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt

from penstock.model.workload import Workload
from penstock.plan.profiles import counts, smallest_within
from penstock.tuner.result import PREFETCH, Setting

STRIDE = 1.5
"""From one number of workers to the next, until the best is between two others."""
WIDE = 0.28
"""Between two numbers that are equally good and such a part apart, a better one may hide."""
NEAR = 8
"""Numbers of workers that are less than such a part apart are not told apart: below 16, every number is."""
DEPTHS = (4, 8, 16)
"""Prefetch factors to try against uneven batches."""
UNEVEN = 0.03
"""The model's gain from which on a deeper prefetch is tried at all."""
ORDER_WORTH = 0.05
"""The model's gain, over the best setting that keeps the order, from which on giving it up is tried."""


def model_guess(workload: Workload, most: int, give_away: float) -> int:
    """Where to begin: the smallest number of workers that the model holds to be as good as the best, 1 at least."""
    return smallest_within(lambda workers: workload.with_(workers=workers).steady_rate, counts(most)[1:], give_away)


def knee(rates: Mapping[int, float], give_away: float) -> int:
    """The smallest number whose rate is within `give_away` of the best."""
    return smallest_within(rates.__getitem__, rates, give_away, every=False)


def next_workers(measured: Mapping[int, float], guess: int, most: int, give_away: float) -> int | None:
    """The number to measure next, given the rates at others (0 where one failed); None where the answer is known.

    As in a golden-section search the best is first bracketed, outwards from the model's guess, then closed in on. But
    on a plateau, where noise decides which is best, the way is down: of equals the smallest is wanted.
    """
    known = {workers: rate for workers, rate in measured.items() if workers > 0}
    guess = min(guess, most)
    if not known:
        return guess
    best = max(known, key=lambda workers: (known[workers], -workers))
    enough = knee(known, give_away)
    above = min((workers for workers in known if workers > enough), default=None)
    if enough == best < most and above is None:
        return min(most, ceil(best * STRIDE))
    below = max((workers for workers in known if workers < enough), default=0)
    if not below and enough > 1:  # a right guess is seen from its neighbour; from a wrong one the steps grow
        return max(1, enough - max(_near(enough), 2 * (guess - enough)))
    gaps = [(enough / max(1, below), below, enough)] if enough - below > _near(enough) else []
    if above is not None and above - enough > max(_near(enough), 0 if enough == best else WIDE * enough):
        gaps.append((above / enough, enough, above))
    if not gaps:
        return None
    _, low, high = max(gaps)
    return _between(low, high)


def _near(workers: int) -> int:
    return max(1, workers // NEAR)


def _between(low: int, high: int) -> int:
    """By their ratio, as rates go with it."""
    return min(high - 1, max(low + 1, round(sqrt(max(1, low) * high))))


def variants(workload: Workload, chosen: Setting, *, deeper: bool = True, loose: bool = True) -> tuple[Setting, ...]:
    """A deeper prefetch, batches out of order: where the simulator says that batches are uneven enough to try it."""
    if not chosen.workers:
        return ()
    found = []
    best = model_rate(workload, chosen)
    deep = {depth: model_rate(workload, Setting(chosen.workers, depth)) for depth in DEPTHS if deeper}
    if deep and max(deep.values()) >= best * (1 + UNEVEN):
        found.append(Setting(chosen.workers, knee(deep, UNEVEN / 2)))
        best = max(deep.values())
    out_of_order = Setting(chosen.workers, in_order=False)
    if loose and model_rate(workload, out_of_order) >= best * (1 + ORDER_WORTH):
        found.append(out_of_order)
    return tuple(found)


def model_rate(workload: Workload, setting: Setting) -> float:
    """Batches per second."""
    in_order = setting.in_order and workload.in_order
    return workload.with_(workers=setting.workers, prefetch=setting.prefetch, in_order=in_order).steady_rate


def choose(rates: Mapping[Setting, float], give_away: float, *, step_known: bool) -> Setting:
    """The cheapest setting within `give_away` of the best, and not slower than torch's defaults.

    No workers at all are the cheapest. But then whatever the step takes comes on top, so where no step was measured
    they are taken only if every number of workers is slower.
    """
    enough = max(rates.values()) * (1 - give_away)
    default = rates.get(Setting(), 0.0)
    if step_known and default >= enough:
        return Setting()
    good = [setting for setting, rate in rates.items() if setting.workers and rate >= max(enough, default)]
    return min(good, key=Setting.cost, default=Setting())


def plain(rates: Mapping[Setting, float]) -> dict[int, float]:
    """By number of workers, of the settings with torch's own prefetch and order."""
    return {
        setting.workers: rate for setting, rate in rates.items() if setting.prefetch == PREFETCH and setting.in_order
    }
