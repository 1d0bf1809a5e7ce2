"""`penstock.tune`: settings for torch's DataLoader, measured once and stored for later runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from typing import Any

from torch.utils.data import DataLoader

from penstock.core.plan import Profile
from penstock.errors import SettingError
from penstock.plan.profiles import profile_goal
from penstock.tuner.loader_copy import copy_loader, loader_kind, preserve_rngs, template_loader
from penstock.tuner.measure import Step
from penstock.tuner.rank_lock import (
    load_shared,
    restrict_to_rank_cores,
    store_shared,
    tuning_lock,
    warn_about_collectives,
)
from penstock.tuner.result import Tuned, TuningFindings
from penstock.tuner.saved_results import tuning_key
from penstock.tuner.tuning_run import TuningRequest, TuningRun
from penstock.watcher.dataloader.settings import loader_settings, qualified_name

SECONDS = 90.0
MIN_SECONDS = 1.0


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
    """Return the settings of torch's DataLoader for this dataset on this machine, within `seconds`.

    `source` is a dataset, with its `batch_size`, or a DataLoader, of which everything is kept but the number of
    workers, the prefetch factor and the order of delivery. `step` is called with batches as training would call it,
    some hundred times: give it a model that may learn. Or `step_s` says how long the device computes on a batch. With
    neither, loading alone is measured. Results are kept for a month; `refresh` measures anew.

    One rank of a machine measures, on its share of the cores, and the others wait for its result. So `step` must not
    need other ranks: give it the model itself, not DistributedDataParallel.
    """
    goal = profile_goal(profile)
    check_request(step, step_s, seconds)
    template = template_loader(source, batch_size)

    def make(kwargs: Mapping[str, Any]) -> DataLoader[Any]:
        return copy_loader(template, kwargs)

    with preserve_rngs(template):
        key = tuning_key(template.dataset, _request(template, step, step_s, profile))
        known = load_shared(key, refresh)
        if known is not None:
            return _tuned(known, make, remembered=True)
        with tuning_lock(seconds):
            known = load_shared(key, refresh)
            if known is not None:  # another rank measured it while this one waited for the lock
                return _tuned(known, make, remembered=True)
            if step is not None:
                warn_about_collectives()
            request = TuningRequest(step=step, step_s=step_s, goal=goal, seconds=seconds)
            with restrict_to_rank_cores():
                found = TuningRun(template, request, is_given=template is source).run()
            store_shared(key, found)
        return _tuned(found, make, remembered=False)


def check_request(step: Step | None, step_s: float | None, seconds: float) -> None:
    """Raise SettingError for arguments that contradict each other or leave no time."""
    if step is not None and step_s is not None:
        raise SettingError("step and step_s are two answers to the same question", advice="Keep one of them")
    if step is not None and not callable(step):
        raise SettingError(f"step={step!r} cannot be called")
    if not MIN_SECONDS <= seconds < inf:
        raise SettingError(f"seconds={seconds}: nothing can be measured in that")
    if step_s is not None and not 0 <= step_s < seconds:
        raise SettingError(f"step_s={step_s} is no time of a step")


def _request(template: DataLoader[Any], step: Step | None, step_s: float | None, profile: str) -> dict[str, Any]:
    """Return what a result depends on besides dataset and machine; not the settings that the tuning changes."""
    settings = {name: setting.in_force for name, setting in loader_settings(template, {}).items()}
    for name in ("num_workers", "prefetch_factor"):
        del settings[name]
    context = template.multiprocessing_context
    settings["multiprocessing_context"] = None if context is None else context.get_start_method()
    if loader_kind(template) is not DataLoader:
        settings["loader"] = loader_kind(template).__module__
    return {**settings, "step": None if step is None else qualified_name(step), "step_s": step_s, "profile": profile}


def _tuned(found: TuningFindings, make: Callable[[Mapping[str, Any]], DataLoader[Any]], *, remembered: bool) -> Tuned:
    values = {each.name: getattr(found, each.name) for each in fields(TuningFindings)}
    return Tuned(**values, remembered=remembered, make=make)
