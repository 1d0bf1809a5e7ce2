"""`penstock.tune`: settings for torch's DataLoader, measured once and remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from typing import Any

from torch.utils.data import DataLoader

from penstock.core.plan import Profile
from penstock.errors import SettingError
from penstock.plan.profiles import profile_goal
from penstock.tuner import saved_results as memo
from penstock.tuner.loader_copy import like, pattern_of, untouched
from penstock.tuner.measure import Step
from penstock.tuner.rank_lock import load_shared, own_cores, rank_turn, store_shared, warn_of_meetings
from penstock.tuner.result import Tuned, TuningFindings
from penstock.tuner.tuning_run import TuningQuestion, TuningRun
from penstock.watcher.dataloader.settings import loader_settings, qualified_name

SECONDS = 90.0
LEAST_SECONDS = 1.0


def tune(
    source: Any,
    *,
    batch_size: int | None = None,
    step: Step | None = None,
    step_s: float | None = None,
    seconds: float = SECONDS,
    profile: Profile = "balanced",
    refresh: bool = False,
) -> Tuned:
    """The settings of torch's DataLoader for this dataset on this machine, in `seconds` at most.

    `source` is a dataset, with its `batch_size`, or a DataLoader, of which everything but the number of workers, the
    depth of the prefetch and the order of delivery is kept. `step` is called with batches as training would call it,
    some hundred times: give it a model that may learn. Or `step_s` says how long the device is busy with a batch. With
    neither, loading alone is measured. Findings are kept for a month; `refresh` measures anew.

    Of the ranks of a machine one measures, on its share of the cores, and the others wait for what it finds. So `step`
    must not need other ranks: give it the model itself, not DistributedDataParallel.
    """
    ways = profile_goal(profile)
    check_question(step, step_s, seconds)
    pattern = pattern_of(source, batch_size)

    def make(kwargs: Mapping[str, Any]) -> DataLoader[Any]:
        return like(pattern, kwargs)

    with untouched(pattern):
        key = memo.key_of(pattern.dataset, _asked(pattern, step, step_s, profile))
        known = load_shared(key, refresh)
        if known is not None:
            return _tuned(known, make, remembered=True)
        with rank_turn(seconds):
            known = load_shared(key, refresh)
            if known is not None:  # by another rank, while we waited for our turn
                return _tuned(known, make, remembered=True)
            if step is not None:
                warn_of_meetings()
            question = TuningQuestion(step=step, step_s=step_s, ways=ways, seconds=seconds)
            with own_cores():
                found = TuningRun(pattern, question, given=pattern is source).run()
            store_shared(key, found)
        return _tuned(found, make, remembered=False)


def check_question(step: Step | None, step_s: float | None, seconds: float) -> None:
    """Refused where it contradicts itself, or leaves no time."""
    if step is not None and step_s is not None:
        raise SettingError("step and step_s are two answers to the same question", advice="Keep one of them")
    if step is not None and not callable(step):
        raise SettingError(f"step={step!r} cannot be called")
    if not LEAST_SECONDS <= seconds < inf:
        raise SettingError(f"seconds={seconds}: nothing can be measured in that")
    if step_s is not None and not 0 <= step_s < seconds:
        raise SettingError(f"step_s={step_s} is no time of a step")


def _asked(pattern: DataLoader[Any], step: Step | None, step_s: float | None, profile: str) -> dict[str, Any]:
    """What findings depend on besides dataset and machine; how many workers there are now is what is asked for."""
    ours = {name: setting.in_force for name, setting in loader_settings(pattern, {}).items()}
    for name in ("num_workers", "prefetch_factor"):
        del ours[name]
    context = pattern.multiprocessing_context
    ours["multiprocessing_context"] = None if context is None else context.get_start_method()
    return {**ours, "step": None if step is None else qualified_name(step), "step_s": step_s, "profile": profile}


def _tuned(found: TuningFindings, make: Callable[[Mapping[str, Any]], DataLoader[Any]], *, remembered: bool) -> Tuned:
    facts = {each.name: getattr(found, each.name) for each in fields(TuningFindings)}
    return Tuned(**facts, remembered=remembered, make=make)
