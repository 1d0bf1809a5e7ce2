"""Changes to the settings of torch's DataLoader: one function per setting, which proposes a value with its reason.

`proposal.propose` calls the functions in the order of SETTING_CHANGES with one ProposalBuilder. Each function reads the
scenario of now and the scenario with all changes proposed so far, and proposes a change or leaves the setting alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any

import numpy as np

from penstock.core.format import format_bytes
from penstock.core.plan import TORCH_PREFETCH_FACTOR, Change
from penstock.diagnose.rules.pageable_copy import PAGEABLE
from penstock.model.edits import with_step
from penstock.model.workload import find_stragglers
from penstock.plan.predict import LIMIT_NAMES, service_s, variation
from penstock.plan.profiles import smallest_within
from penstock.plan.scenario import NO_START_COST, Scenario, spawns_by_default
from penstock.plan.worker_count import MAX_WORKERS, candidate_counts

MIN_GAIN = 0.02
"""A smaller gain is not worth a change: two runs differ by more."""
MIN_ORDER_GAIN = 0.05
"""Gain needed to give up the order of batches, which costs exact repeats."""
MIN_INLINE_GAIN = 0.2
"""Gain needed to go without workers: it depends on the cost of receiving batches, which is the least certain input."""
SPARE = 2.0
"""Multiple of the workers that the laws require up to which more may still help, because batches vary."""
PREFETCH_FACTORS = (2, 3, 4, 6, 8, 12, 16)
"""Prefetch factors that are tried in the model."""
SHARED_BOUNDS = frozenset({"cpu", "serial", "main", "step"})
"""Bounds that do not change with the number of workers."""


@dataclass(kw_only=True)
class ProposalBuilder:
    """The changes proposed so far, the scenario that they lead to, and the notes on settings left alone."""

    now: Scenario
    then: Scenario
    """The scenario with all changes proposed so far."""
    pinned: frozenset[str]
    """Settings that must stay as they are."""
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def propose(
        self,
        name: str,
        values: tuple[Any, Any],
        edit: Callable[[Scenario], Scenario],
        reason: str,
        *,
        cost: str = "",
        min_gain: float = MIN_GAIN,
        for_memory: bool = False,
    ) -> None:
        """Take the change if it gains enough on top of the changes so far, or saves memory that must be saved.

        `values` are the value now and the proposed one; `edit` applies the change to a scenario. The gain that the
        change reports is the one of the change alone or, where it helps only after the others, on top of them.
        """
        now, then = values
        after = edit(self.then)
        more = after.gain_over(self.then)
        if not after.allowed(self.now):
            self.notes.append(f"{name}: {then} would not fit into memory")
        elif more < min_gain and not for_memory:
            self.notes.append(f"{name}: leave it at {now}; {then} would give {more:+.1%}")
        elif name in self.pinned:
            self.notes.append(f"{name} is pinned to {now}; {then} would give {more:+.0%}: {reason}")
        else:
            alone = edit(self.now).gain_over(self.now)
            gain = alone if alone >= min_gain or for_memory else more
            self.then = after
            self.changes.append(
                Change(scope="dataloader", name=name, now=now, then=then, reason=reason, gain=gain, cost=cost)
            )


# -- one function per setting --------------------------------------------------------------------------------------


def fit_into_memory(builder: ProposalBuilder) -> None:
    """Reduce the prefetch factor first where the current settings cannot fit: it gives nothing to even batches."""
    fit = builder.now.fit()
    if fit is None:
        builder.notes.append("Memory is not checked: the size of a batch, or what is free, is not known")
        return
    if fit:
        return
    builder.notes.append(f"The settings in force cannot fit: it {fit.text}")
    prefetch = builder.now.settings.prefetch_factor
    too_deep = builder.now.settings.num_workers and prefetch > TORCH_PREFETCH_FACTOR
    if too_deep and "prefetch_factor" not in builder.pinned:
        less = builder.now.with_settings(prefetch_factor=TORCH_PREFETCH_FACTOR)
        builder.changes.append(
            Change(
                scope="dataloader",
                name="prefetch_factor",
                now=prefetch,
                then=TORCH_PREFETCH_FACTOR,
                reason=f"In force, it {fit.text}",
                gain=less.gain_over(builder.now),
            )
        )
        builder.then = less


def num_workers(builder: ProposalBuilder) -> None:
    """Propose the smallest number of workers whose rate is within the profile's tolerance of the best."""
    if "persistent_workers" not in builder.pinned:  # decided last; until then the start of many workers must not count
        builder.then = builder.then.with_settings(persistent_workers=True)
    then, now = builder.then, builder.now.settings.num_workers
    scenario_with = cache(lambda number: then.with_settings(num_workers=number))

    candidates = {*candidate_counts(max_useful_workers(then)), *([now] if then.context.dataset_workers is None else [])}
    fitting = [number for number in candidates if scenario_with(number).allowed(builder.now)]
    if not fitting:
        builder.notes.append("num_workers: no number of workers fits into memory; make batches smaller")
        return
    best = smallest_within(lambda number: scenario_with(number).batches_s, fitting, then.goal.rate_tolerance)
    if best == now:
        return
    too_large = not then.allowed(builder.now)  # the current settings cannot fit
    builder.propose(
        "num_workers",
        (now, best),
        lambda scenario: scenario.with_settings(num_workers=best),
        _workers_reason(scenario_with(now), scenario_with(best), too_large=too_large),
        cost=_memory_cost(then, scenario_with(best)),
        min_gain=MIN_GAIN if best else MIN_INLINE_GAIN,
        for_memory=best < now and (too_large or then.goal.saves_memory),
    )


def prefetch_factor(builder: ProposalBuilder) -> None:
    """Propose a deeper prefetch only where the simulation says that batches vary enough for it."""
    then, now = builder.then, builder.now.settings.prefetch_factor
    if not then.settings.num_workers or then.settings.prefetch_factor != now:  # already reduced for memory
        return
    scenarios = {
        depth: then.with_settings(prefetch_factor=depth)
        for depth in PREFETCH_FACTORS
        if depth <= then.goal.max_prefetch
    }
    fitting = [depth for depth, scenario in scenarios.items() if scenario.allowed(builder.now)]
    if not fitting:
        return
    best = smallest_within(lambda depth: scenarios[depth].batches_s, fitting, then.goal.rate_tolerance, refine=False)
    saves = best < now and then.goal.saves_memory
    if best == now or (best < now and not saves):
        return
    builder.propose(
        "prefetch_factor",
        (now, best),
        lambda scenario: scenario.with_settings(prefetch_factor=best),
        f"The time per batch varies by {variation(then.workload.work.sum(axis=0)):.0%} of its mean: {best} prefetched "
        "batches per worker cover the slow ones"
        if best > now
        else f"{best} prefetched batches keep even workers busy; {now} only hold memory",
        cost=_memory_cost(then, then.with_settings(prefetch_factor=best)),
        for_memory=saves,
    )


def in_order_for_lag(builder: ProposalBuilder) -> None:
    """Propose in_order=False for lagging workers, before more workers, which would only dilute the lagging one."""
    if lags := len(builder.now.workload.lags):
        _out_of_order(
            builder, f"{lags} of the workers {'lag' if lags > 1 else 'lags'}, and in order all others wait for it"
        )


def in_order_for_stragglers(builder: ProposalBuilder) -> None:
    """Propose in_order=False for single slow batches, after the prefetch, which covers them and keeps the order."""
    if slow := float(find_stragglers(builder.now.workload).mean()):
        _out_of_order(builder, f"{slow:.1%} of the batches take far longer than the rest, which wait for them in order")


def _out_of_order(builder: ProposalBuilder, reason: str) -> None:
    then = builder.then
    if not (then.settings.in_order and then.settings.num_workers > 1 and then.context.has_in_order):
        return
    builder.propose(
        "in_order",
        (True, False),
        lambda scenario: scenario.with_settings(in_order=False),
        reason,
        cost="Batches come in another order in each run: no exact repeats, and resuming in mid-epoch is not exact",
        min_gain=MIN_ORDER_GAIN,
    )


def pin_memory(builder: ProposalBuilder) -> None:
    """Propose pinned memory only with a GPU, and only where copies were measured to delay the loop."""
    context = builder.now.context
    if not context.gpus or builder.now.settings.pin_memory or context.copy_s <= 0:
        return
    saved_s = context.copy_s * (1 - PAGEABLE)

    def with_faster_copies(scenario: Scenario) -> Scenario:
        step_s = scenario.workload.step_s
        shorter_s = np.maximum(step_s - saved_s, np.minimum(step_s, context.device_s))
        return scenario.with_settings(pin_memory=True).with_remedy(lambda workload: with_step(workload, shorter_s))

    builder.propose(
        "pin_memory",
        (False, True),
        with_faster_copies,
        f"Copies to the device delay the loop by {context.copy_s * 1e3:.2g} ms per step; from pinned memory they take "
        f"{PAGEABLE:.0%} of that, and nothing with .to(device, non_blocking=True)",
        cost=_memory_cost(builder.then, builder.then.with_settings(pin_memory=True)),
    )


def persistent_workers(builder: ProposalBuilder) -> None:
    """Propose persistent workers where starting them takes a noticeable part of an epoch."""
    then = builder.then.with_settings(persistent_workers=builder.now.settings.persistent_workers)
    context = builder.now.context
    builder.then = then
    if not then.settings.num_workers or then.settings.persistent_workers or not context.epoch_batches:
        return
    start_s = context.worker_start.seconds(then.settings.num_workers)
    epoch_s = context.epoch_batches / then.prediction.batches_s
    builder.propose(
        "persistent_workers",
        (False, True),
        lambda scenario: scenario.with_settings(persistent_workers=True),
        f"Starting {then.settings.num_workers} workers takes {start_s:.2g} s before each epoch of {epoch_s:.3g} s",
        cost="Workers keep their memory between epochs",
    )


def multiprocessing_context(builder: ProposalBuilder) -> None:
    """Propose `fork` instead of a slow `spawn` where it is safe: Linux, no GPU, and workers that may not persist."""
    then, context = builder.then, builder.now.context
    unsafe = context.gpus or spawns_by_default(context.platform) or not context.platform
    if unsafe or then.settings.persistent_workers or then.settings.multiprocessing_context != "spawn":
        return
    builder.propose(
        "multiprocessing_context",
        ("spawn", "fork"),
        lambda scenario: replace(
            scenario.with_settings(multiprocessing_context="fork"),
            context=replace(context, worker_start=NO_START_COST),
        ),
        f"spawn repeats all imports in {then.settings.num_workers} workers before each epoch; fork copies pages",
        cost="Threads of the main process, and locks they hold, do not exist in forked workers",
    )


def worker_threads(builder: ProposalBuilder) -> None:
    """Propose one thread in each worker where libraries start more and the cores are crowded."""
    context = builder.now.context
    if context.single_thread_remedy is None or context.threads_per_worker <= 1:
        return
    remedy = context.single_thread_remedy
    builder.propose(
        "worker_threads",
        (round(context.threads_per_worker, 1), 1),
        lambda scenario: scenario.with_remedy(remedy),
        f"{context.threads_per_worker:.1f} cores' worth of threads run in each of "
        f"{builder.now.settings.num_workers} workers on {builder.now.workload.cores:g} cores: torch limits its own "
        "threads there, OpenCV, OpenMP and BLAS do not (cv2.setNumThreads(0), OMP_NUM_THREADS=1)",
    )


SETTING_CHANGES: tuple[Callable[[ProposalBuilder], None], ...] = (
    fit_into_memory,
    worker_threads,
    in_order_for_lag,
    num_workers,
    prefetch_factor,
    in_order_for_stragglers,
    pin_memory,
    persistent_workers,
    multiprocessing_context,
)
"""The order matters: the gain of the later changes depends on the earlier ones."""


# -- numbers and texts ---------------------------------------------------------------------------------------------


def max_useful_workers(scenario: Scenario) -> int:
    """Return the number of workers beyond which more cannot help, within the limits of the machine and the dataset.

    It is SPARE times the number with which W/S reaches the lowest bound that does not change with W.
    """
    limit = scenario.worker_limit.workers
    bounds = scenario.with_settings(num_workers=MAX_WORKERS).prediction.bounds  # other programs leave more to many
    shared = [bound.rate for bound in bounds if bound.name in SHARED_BOUNDS]
    return min(limit, ceil(SPARE * service_s(scenario.workload) * min(shared)) + 1) if shared else limit


def _workers_reason(now: Scenario, then: Scenario, *, too_large: bool) -> str:
    before, after = now.settings.num_workers, then.settings.num_workers
    rates = f"{after} workers give {then.samples_s:.3g} samples/s, {before} give {now.samples_s:.3g}"
    if too_large:
        return f"{before} workers do not fit into the memory that may be used; {rates}"
    others = [limit for limit in then.prediction.limits if limit.name != "workers"]
    return f"{rates}; {LIMIT_NAMES[others[0].name]} would allow {others[0].samples_s:.3g}" if others else rates


def _memory_cost(before: Scenario, after: Scenario) -> str:
    """Return how much memory a change takes or frees; empty where it is not known or none."""
    if before.need is None or after.need is None:
        return ""
    more = after.need.total_bytes - before.need.total_bytes
    return f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'} memory" if more else ""
