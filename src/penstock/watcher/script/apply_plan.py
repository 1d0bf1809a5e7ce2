"""Gives every torch DataLoader that a script makes the settings of a plan instead of its own.

It runs in the script's process.

- Only the settings in the plan are replaced: dataset, sampler, batch size and all others stay the script's.
- Without workers (num_workers=0 in the plan or the script), torch accepts no settings of workers: prefetch_factor,
  persistent_workers and multiprocessing_context of the plan are dropped. Where the plan removes the workers, those of
  the script and its timeout are dropped too.
- An iterable dataset divides its samples between the workers itself. If the script has at most one worker and the
  dataset never calls get_worker_info, two workers would deliver every sample twice: num_workers then stays the
  script's.
- A loader made inside a worker of another loader stays as it is: a worker may not start processes.
- If torch refuses the settings, that is logged and the loader is made with the script's own. What fails later, such as
  a dataset that cannot be pickled for spawned workers, fails in the script.

This module imports torch only inside functions that run after the script has imported it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.watcher.script.autostart import in_dataloader_worker

log = logging.getLogger("penstock")

THREADS_SETTING = "worker_threads"
"""A setting of plans that torch does not have: the number of threads that libraries may use in a worker."""
PLAN_SETTINGS = frozenset(
    {
        "num_workers",
        "prefetch_factor",
        "pin_memory",
        "persistent_workers",
        "in_order",
        "multiprocessing_context",
        THREADS_SETTING,
    }
)
"""The settings that a plan may replace."""
SETTINGS_WITHOUT_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}
"""The values that torch requires where num_workers is 0."""
REPLACED_ATTRIBUTE = "_penstock_replaced"
"""The attribute of a loader that holds its ReplacedSettings."""

ReplacedSettings = dict[str, tuple[Any, Any]]
"""Setting → (the script's value, the plan's value)."""

_logged: set[str] = set()
"""Messages that were logged already."""


def apply_plan(plan: Mapping[str, Any], loader_class: Any) -> None:
    """Apply a plan to all loaders that this process makes from now on.

    `loader_class` is torch's DataLoader; its subclasses are included.
    """
    unknown = sorted(plan.keys() - PLAN_SETTINGS)
    if unknown:
        _log_once(f"the plan's {', '.join(unknown)} cannot be applied to a DataLoader; the script's values stay")
    known = {name: value for name, value in plan.items() if name in PLAN_SETTINGS}
    init = loader_class.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
        if in_dataloader_worker():
            init(loader, *args, **kwargs)
            return
        before = dict(vars(loader))
        try:
            call = signature.bind(loader, *args, **kwargs)
            changed = _replace(call, known)
            init(*call.args, **call.kwargs)
            setattr(loader, REPLACED_ATTRIBUTE, changed)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        else:
            _log_replaced(changed)
            return
        vars(loader).clear()
        vars(loader).update(before)
        init(loader, *args, **kwargs)  # an error in the script's own arguments is raised here, as without a plan
        _log_once(f"the plan is not applied to a DataLoader, which keeps the script's settings: {failed}")

    loader_class.__init__ = __init__


def replaced_settings(loader: Any) -> ReplacedSettings:
    """Return the settings of this loader that the plan replaced."""
    found = getattr(loader, REPLACED_ATTRIBUTE, None)
    return found if isinstance(found, dict) else {}


def _replace(call: inspect.BoundArguments, plan: Mapping[str, Any]) -> ReplacedSettings:
    """Put the plan's values into the script's call, and return those that differ from the script's."""
    parameters = call.signature.parameters

    def script_value(name: str) -> Any:
        return call.arguments.get(name, parameters[name].default)

    wanted = {name: value for name, value in plan.items() if name in parameters or name == THREADS_SETTING}
    for name in sorted(plan.keys() - wanted.keys()):
        _log_once(f"this version of torch has no {name}: the plan's value is ignored")
    workers = script_value("num_workers")
    planned_workers = wanted.get("num_workers", workers)
    if workers <= 1 < planned_workers and not _divides_samples_between_workers(script_value("dataset")):
        _log_once(
            f"num_workers stays {workers}: with more, an iterable dataset may deliver every sample once per worker"
        )
        del wanted["num_workers"]
    if wanted.get("num_workers", workers) == 0:
        dropped = {*SETTINGS_WITHOUT_WORKERS, THREADS_SETTING}
        wanted = {name: value for name, value in wanted.items() if name not in dropped}
        wanted |= {name: value for name, value in SETTINGS_WITHOUT_WORKERS.items() if workers > 0}
    changed: ReplacedSettings = {}
    threads = wanted.pop(THREADS_SETTING, None)
    if threads is not None:
        call.arguments["worker_init_fn"] = LimitThreads(threads, script_value("worker_init_fn"))
        changed[THREADS_SETTING] = (None, threads)
    for name, value in wanted.items():
        own = _effective_value(name, script_value(name), workers)
        if own != value:
            call.arguments[name] = value
            changed[name] = (own, value)
    return changed


def _effective_value(name: str, value: Any, workers: int) -> Any:
    """Return the value in force for a script's value: torch's default for None, a context's start method."""
    if name == "prefetch_factor" and value is None and workers > 0:
        return TORCH_PREFETCH_FACTOR
    if name == "multiprocessing_context" and hasattr(value, "get_start_method"):
        return value.get_start_method()
    return value


def _divides_samples_between_workers(dataset: Any) -> bool:
    """Return whether more workers divide the samples: by index always, else if the dataset calls get_worker_info."""
    from torch.utils.data import IterableDataset

    if not isinstance(dataset, IterableDataset):
        return True
    members = [member for each in type(dataset).__mro__ for member in vars(each).values()]
    codes = [getattr(member, "__code__", None) for member in members]
    return any("get_worker_info" in code.co_names for code in codes if code is not None)


class LimitThreads:
    """A worker_init_fn that calls the script's own and then limits the threads of torch, OpenCV and BLAS."""

    def __init__(self, threads: int, init_fn: Callable[[int], object] | None) -> None:
        self.threads = threads
        self.init_fn = init_fn

    def __call__(self, worker: int) -> None:
        """Initialise a worker before its first batch."""
        if self.init_fn is not None:
            self.init_fn(worker)
        try:
            limit_threads(self.threads)
        except Exception as error:
            log.warning("threads are not limited in worker %d: %s: %s", worker, type(error).__name__, error)


def limit_threads(threads: int) -> None:
    """Limit the threads of torch and OpenCV, if imported, and of OpenMP and BLAS, if threadpoolctl is installed."""
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    if torch is not None:
        torch.set_num_threads(threads)
    if cv2 is not None:
        cv2.setNumThreads(threads)
    with suppress(ImportError):
        from threadpoolctl import threadpool_limits  # type: ignore[import-not-found,unused-ignore]

        threadpool_limits(threads)


def _log_replaced(changed: ReplacedSettings) -> None:
    if changed:
        changes = ", ".join(f"{name} {own} → {planned}" for name, (own, planned) in changed.items())
        _log_once(f"the plan changes a DataLoader: {changes}")


def _log_once(text: str) -> None:
    """Log a message once, because a script may make a new loader for every epoch."""
    if text not in _logged:
        _logged.add(text)
        log.warning("%s", text)
