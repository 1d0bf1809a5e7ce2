"""Inside a script's process: every torch DataLoader that it makes gets a plan's settings instead of its own.

- What the plan names is replaced, nothing else: dataset, sampler, batch size and the rest stay the script's.
- Without workers (num_workers=0, the plan's or the script's) there is nobody to prefetch, keep or start: the plan's
  prefetch_factor, persistent_workers and multiprocessing_context are dropped, and the script's too, with its timeout,
  where it is the plan that takes the workers away.
- An iterable dataset deals samples to its workers itself. Where the script has one worker at most and the dataset never
  asks which worker it is in, two would deliver every sample twice: there the number of workers stays.
- A loader made inside a worker of another stays as it is: workers may have no workers.
- What torch refuses is told, and the loader is made with the script's own settings. What fails later, such as a
  dataset that cannot be pickled for spawned workers, fails in the script.

Nothing of torch is imported here: the script has done that.
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
"""Not a setting of torch's: how many threads libraries may use in a worker."""
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
"""What a plan may set."""
SETTINGS_WITHOUT_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
}
"""What torch insists on when there are none."""
REPLACED_ATTRIBUTE = "_penstock_replaced"
"""The attribute in which a loader keeps what was replaced."""

ReplacedSettings = dict[str, tuple[Any, Any]]
"""Setting → the script's value, and the one in its place."""

_logged: set[str] = set()


def apply_plan(plan: Mapping[str, Any], kind: Any) -> None:
    """To all loaders made from now on in this process, subclasses included; `kind` is torch's DataLoader."""
    unknown = sorted(plan.keys() - PLAN_SETTINGS)
    if unknown:
        _log_once(f"the plan's {', '.join(unknown)} cannot be applied to a script's DataLoader, and stays the script's")
    known = {name: value for name, value in plan.items() if name in PLAN_SETTINGS}
    init = kind.__init__
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
        init(loader, *args, **kwargs)  # if the fault is the script's, it is told here as without us
        _log_once(f"the plan is not applied to a DataLoader, which keeps the script's settings: {failed}")

    kind.__init__ = __init__


def replaced_settings(loader: Any) -> ReplacedSettings:
    """What the plan changed of this loader; empty where nothing."""
    found = getattr(loader, REPLACED_ATTRIBUTE, None)
    return found if isinstance(found, dict) else {}


def _replace(call: inspect.BoundArguments, plan: Mapping[str, Any]) -> ReplacedSettings:
    """Put the plan's values into the script's call."""
    parameters = call.signature.parameters

    def given(name: str) -> Any:
        return call.arguments.get(name, parameters[name].default)

    wanted = {name: value for name, value in plan.items() if name in parameters or name == THREADS_SETTING}
    for name in sorted(plan.keys() - wanted.keys()):
        _log_once(f"this torch has no {name}: the plan's is left out")
    was = given("num_workers")
    if was <= 1 < wanted.get("num_workers", was) and not _divides_samples_between_workers(given("dataset")):
        _log_once(f"num_workers stays {was}: with more, an iterable dataset may deliver every sample once per worker")
        del wanted["num_workers"]
    if wanted.get("num_workers", was) == 0:
        wanted = {
            name: value for name, value in wanted.items() if name not in {*SETTINGS_WITHOUT_WORKERS, THREADS_SETTING}
        }
        wanted |= {name: value for name, value in SETTINGS_WITHOUT_WORKERS.items() if was > 0}
    changed: ReplacedSettings = {}
    threads = wanted.pop(THREADS_SETTING, None)
    if threads is not None:
        call.arguments["worker_init_fn"] = LimitThreads(threads, given("worker_init_fn"))
        changed[THREADS_SETTING] = (None, threads)
    for name, value in wanted.items():
        own = _effective_value(name, given(name), was)
        if own != value:
            call.arguments[name] = value
            changed[name] = (own, value)
    return changed


def _effective_value(name: str, value: Any, workers: int) -> Any:
    """The script's own value: what stands for it where it gave none, and contexts by their names."""
    if name == "prefetch_factor" and value is None and workers > 0:
        return TORCH_PREFETCH_FACTOR
    if name == "multiprocessing_context" and hasattr(value, "get_start_method"):
        return value.get_start_method()
    return value


def _divides_samples_between_workers(dataset: Any) -> bool:
    """Whether more workers share the samples: always by index, else only where the dataset asks which worker it is."""
    from torch.utils.data import IterableDataset

    if not isinstance(dataset, IterableDataset):
        return True
    functions = [thing for kind in type(dataset).__mro__ for thing in vars(kind).values()]
    codes = [getattr(thing, "__code__", None) for thing in functions]
    return any("get_worker_info" in code.co_names for code in codes if code is not None)


class LimitThreads:
    """A worker_init_fn: the script's own, then no more than so many threads in torch, OpenCV and BLAS."""

    def __init__(self, threads: int, init_fn: Callable[[int], object] | None) -> None:
        self.threads = threads
        self.init_fn = init_fn

    def __call__(self, worker: int) -> None:
        """In the worker, before its first batch."""
        if self.init_fn is not None:
            self.init_fn(worker)
        try:
            limit_threads(self.threads)
        except Exception as error:
            log.warning("threads are not limited in worker %d: %s: %s", worker, type(error).__name__, error)


def limit_threads(threads: int) -> None:
    """Of the libraries that this process has; OpenMP and BLAS by way of threadpoolctl, where that is installed."""
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
        words = ", ".join(f"{name} {was} → {now}" for name, (was, now) in changed.items())
        _log_once(f"by the plan, a DataLoader has {words}")


def _log_once(text: str) -> None:
    """Once: a script may make a loader for every epoch."""
    if text not in _logged:
        _logged.add(text)
        log.warning("%s", text)
