"""The knobs of torch's DataLoader, one function each: what it could be set to, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any

import numpy as np

from penstock.core.format import format_bytes
from penstock.core.plan import Change
from penstock.model.edits import with_step
from penstock.model.workload import stragglers
from penstock.plan.predict import MEANING, service_s, variation
from penstock.plan.profiles import USUAL_PREFETCH, WorkerStartCost, counts, smallest_within, spawns
from penstock.plan.scenario import Scenario

LEAST_GAIN = 0.02
"""Less is not worth a change: runs differ by more."""


@dataclass(kw_only=True)
class ProposalBuilder:
    """Where a proposal is put together, one knob after the other."""

    now: Scenario
    then: Scenario
    """With all that is proposed so far."""
    pinned: frozenset[str]
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def offer(
        self,
        name: str,
        values: tuple[Any, Any],
        edit: Callable[[Scenario], Scenario],
        reason: str,
        *,
        cost: str = "",
        least: float = LEAST_GAIN,
        for_memory: bool = False,
    ) -> None:
        """Take it if it gains enough on top of what is proposed already, or saves memory that must be saved."""
        now, then = values
        after = edit(self.then)
        more = after.gain_over(self.then)
        if not after.allowed(self.now):
            self.notes.append(f"{name}: {then} would not fit into memory")
        elif more < least and not for_memory:
            self.notes.append(f"{name}: leave it at {now}; {then} would give {more:+.1%}")
        elif name in self.pinned:
            self.notes.append(f"{name} is pinned to {now}; {then} would give {more:+.0%}: {reason}")
        else:
            alone = edit(self.now).gain_over(self.now)
            gain = alone if alone >= least or for_memory else more
            self.then = after
            self.changes.append(
                Change(scope="dataloader", name=name, now=now, then=then, reason=reason, gain=gain, cost=cost)
            )


ORDER_GAIN = 0.05
"""Giving up the order of batches must bring at least this: it costs exact repeats."""
NONE_GAIN = 0.2
"""Going without workers must bring at least this: it rests on what taking batches over costs, the least sure of all."""
MOST_WORKERS = 64
"""More processes than this are never the answer to waiting: threads that read are."""
SPARE = 2.0
"""Times the workers that the laws ask for: so many more may still help where batches vary."""
PAGEABLE = 19 / 55
"""Speed of a copy to the device from ordinary memory over that from pinned memory: measured on an H200, GB/s."""
DEPTHS = (2, 3, 4, 6, 8, 12, 16)
"""Of prefetch, that are asked about."""
SHARED_LAWS = frozenset({"cpu", "serial", "main", "step"})
"""Limits that do not move with the number of workers."""


def memory_first(desk: ProposalBuilder) -> None:
    """Settings in force that cannot fit: first the prefetch goes, because it gives nothing to even batches."""
    fit = desk.now.fit()
    if fit is None:
        desk.notes.append("Memory is not checked: the size of a batch, or what is free, is not known")
        return
    if fit:
        return
    desk.notes.append(f"The settings in force cannot fit: it {fit.sentence}")
    prefetch = desk.now.settings.prefetch_factor
    if desk.now.settings.num_workers and prefetch > USUAL_PREFETCH and "prefetch_factor" not in desk.pinned:
        less = desk.now.with_settings(prefetch_factor=USUAL_PREFETCH)
        desk.changes.append(
            Change(
                scope="dataloader",
                name="prefetch_factor",
                now=prefetch,
                then=USUAL_PREFETCH,
                reason=f"In force, it {fit.sentence}",
                gain=less.gain_over(desk.now),
            )
        )
        desk.then = less


def num_workers(desk: ProposalBuilder) -> None:
    """The smallest number within the profile's reach of the best: W/S up to whatever else binds."""
    if "persistent_workers" not in desk.pinned:  # that knob comes last, and the start of many workers should not count
        desk.then = desk.then.with_settings(persistent_workers=True)
    then, now = desk.then, desk.now.settings.num_workers
    at = cache(lambda number: then.with_settings(num_workers=number))

    asked = {*counts(most_workers(then)), *([now] if then.place.most_workers is None else [])}
    fitting = [number for number in asked if at(number).allowed(desk.now)]
    if not fitting:
        desk.notes.append("num_workers: no number of workers fits into memory; make batches smaller")
        return
    best = smallest_within(lambda number: at(number).batches_s, fitting, then.goal.give_away)
    if best == now:
        return
    too_large = not then.allowed(desk.now)  # what is in force cannot fit
    desk.offer(
        "num_workers",
        (now, best),
        lambda situation: situation.with_settings(num_workers=best),
        _workers_reason(at(now), at(best), too_large=too_large),
        cost=_more_memory(then, at(best)),
        least=LEAST_GAIN if best else NONE_GAIN,
        for_memory=best < now and (too_large or then.goal.saves_memory),
    )


def prefetch_factor(desk: ProposalBuilder) -> None:
    """Deeper only where the simulator says that batches vary enough for it."""
    then, now = desk.then, desk.now.settings.prefetch_factor
    if not then.settings.num_workers or then.settings.prefetch_factor != now:  # it went for memory already
        return
    at = {depth: then.with_settings(prefetch_factor=depth) for depth in DEPTHS if depth <= then.goal.most_prefetch}
    fitting = [depth for depth, situation in at.items() if situation.allowed(desk.now)]
    if not fitting:
        return
    best = smallest_within(lambda depth: at[depth].batches_s, fitting, then.goal.give_away, every=False)
    saves = best < now and then.goal.saves_memory
    if best == now or (best < now and not saves):
        return
    desk.offer(
        "prefetch_factor",
        (now, best),
        lambda situation: situation.with_settings(prefetch_factor=best),
        f"Batches take {variation(then.workload.work.sum(axis=0)):.0%} more or less than their mean: {best} ahead of "
        "each worker ride over the slow ones"
        if best > now
        else f"{best} ahead keep even workers busy; {now} only hold memory",
        cost=_more_memory(then, then.with_settings(prefetch_factor=best)),
        for_memory=saves,
    )


def in_order_for_lag(desk: ProposalBuilder) -> None:
    """Before more workers are asked for: they would only make the one that lags a smaller part of all."""
    if lags := len(desk.now.workload.lags_s):
        _out_of_order(
            desk, f"{lags} of the workers {'lag' if lags > 1 else 'lags'}, and in order all others wait for it"
        )


def in_order_for_stragglers(desk: ProposalBuilder) -> None:
    """After the prefetch, which rides over single slow batches and keeps the order."""
    if slow := float(stragglers(desk.now.workload).mean()):
        _out_of_order(desk, f"{slow:.1%} of the batches take far longer than the rest, which wait for them in order")


def _out_of_order(desk: ProposalBuilder, reason: str) -> None:
    then = desk.then
    if not (then.settings.in_order and then.settings.num_workers > 1 and then.place.has_in_order):
        return
    desk.offer(
        "in_order",
        (True, False),
        lambda situation: situation.with_settings(in_order=False),
        reason,
        cost="Batches come in another order in each run: no exact repeats, and resuming in mid-epoch is not exact",
        least=ORDER_GAIN,
    )


def pin_memory(desk: ProposalBuilder) -> None:
    """Only with a GPU, and only for copies that were seen to hold the loop up."""
    place = desk.now.place
    if not place.gpus or desk.now.settings.pin_memory or place.copy_s <= 0:
        return
    saved_s = place.copy_s * (1 - PAGEABLE)

    def quicker(situation: Scenario) -> Scenario:
        step_s = situation.workload.step_s
        shorter_s = np.maximum(step_s - saved_s, np.minimum(step_s, place.device_s))
        return situation.with_settings(pin_memory=True).cured(lambda workload: with_step(workload, shorter_s))

    desk.offer(
        "pin_memory",
        (False, True),
        quicker,
        f"Copies to the device hold the loop up for {place.copy_s * 1e3:.2g} ms a step; from pinned memory they take "
        f"{PAGEABLE:.0%} of that, and nothing with .to(device, non_blocking=True)",
        cost=_more_memory(desk.then, desk.then.with_settings(pin_memory=True)),
    )


def persistent_workers(desk: ProposalBuilder) -> None:
    """Where epochs are short against the start of workers."""
    then, place = desk.then.with_settings(persistent_workers=desk.now.settings.persistent_workers), desk.now.place
    desk.then = then
    if not then.settings.num_workers or then.settings.persistent_workers or not place.epoch_batches:
        return
    start_s = place.start.seconds(then.settings.num_workers)
    epoch_s = place.epoch_batches / then.prediction.batches_s
    desk.offer(
        "persistent_workers",
        (False, True),
        lambda situation: situation.with_settings(persistent_workers=True),
        f"Starting {then.settings.num_workers} workers takes {start_s:.2g} s before each epoch of {epoch_s:.3g} s",
        cost="Workers keep their memory between epochs",
    )


def multiprocessing_context(desk: ProposalBuilder) -> None:
    """`fork` where `spawn` is slow and nothing forbids it: Linux, no GPU, and workers that may not persist."""
    then, place = desk.then, desk.now.place
    forbidden = place.gpus or spawns(place.platform) or not place.platform
    if forbidden or then.settings.persistent_workers or then.settings.multiprocessing_context != "spawn":
        return
    desk.offer(
        "multiprocessing_context",
        ("spawn", "fork"),
        lambda situation: replace(
            situation.with_settings(multiprocessing_context="fork"), place=replace(place, start=WorkerStartCost(0.0))
        ),
        f"spawn imports everything anew in {then.settings.num_workers} workers before each epoch; fork copies pages",
        cost="Threads of the main process, and locks they hold, do not exist in forked workers",
    )


def worker_threads(desk: ProposalBuilder) -> None:
    """One thread in each worker, where libraries start more and the cores are crowded."""
    place = desk.now.place
    if place.uncrowded is None or place.threads <= 1:
        return
    cure = place.uncrowded
    desk.offer(
        "worker_threads",
        (round(place.threads, 1), 1),
        lambda situation: situation.cured(cure),
        f"{place.threads:.1f} cores' worth of threads run in each of {desk.now.settings.num_workers} workers on "
        f"{desk.now.workload.cores:g} cores: torch limits its own there, OpenCV, OpenMP and BLAS do not "
        "(cv2.setNumThreads(0), OMP_NUM_THREADS=1)",
    )


KNOBS: tuple[Callable[[ProposalBuilder], None], ...] = (
    memory_first,
    worker_threads,
    in_order_for_lag,
    num_workers,
    prefetch_factor,
    in_order_for_stragglers,
    pin_memory,
    persistent_workers,
    multiprocessing_context,
)
"""In this order: what the later ones give depends on the earlier."""


# -- in words and numbers ------------------------------------------------------------------------------------------


def most_workers(situation: Scenario) -> int:
    """Beyond which no more can help: with W/S at SPARE times the lowest limit that does not move with W."""
    needed = MOST_WORKERS
    bounds = situation.with_settings(num_workers=MOST_WORKERS).prediction.bounds  # strangers leave more to many
    limits = [bound.rate for bound in bounds if bound.name in SHARED_LAWS]
    if limits:
        needed = min(needed, ceil(SPARE * service_s(situation.workload) * min(limits)) + 1)
    return needed if situation.place.most_workers is None else min(needed, max(1, situation.place.most_workers))


def _workers_reason(now: Scenario, then: Scenario, *, too_large: bool) -> str:
    before, after = now.settings.num_workers, then.settings.num_workers
    rates = f"{after} workers give {then.samples_s:.3g} samples/s, {before} give {now.samples_s:.3g}"
    if too_large:
        return f"{before} workers do not fit into the memory that may be used; {rates}"
    others = [limit for limit in then.prediction.limits if limit.name != "workers"]
    return f"{rates}; {MEANING[others[0].name]} would allow {others[0].samples_s:.3g}" if others else rates


def _more_memory(before: Scenario, after: Scenario) -> str:
    """What a change takes or frees, where that is known."""
    if before.need is None or after.need is None:
        return ""
    more = after.need.total_bytes - before.need.total_bytes
    return f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'} memory" if more else ""
