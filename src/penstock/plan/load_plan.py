"""A plan, used where it was made or elsewhere: what differs is told, and it is used all the same.

loader = penstock.Loader.from_config("train.yaml", plan="plan.yaml")
loader = DataLoader(dataset, batch_size=64, shuffle=True, **dataloader_kwargs("plan.yaml"))
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from penstock.core.plan import Plan
from penstock.errors import printable
from penstock.plan.document import Source, load_plan
from penstock.plan.fingerprint import differences
from penstock.watcher.script.apply_plan import THREADS_SETTING, LimitThreads

log = logging.getLogger("penstock")


def plan_here(path: Source) -> Plan:
    """The plan in a file; one for another machine comes with a warning for everything that is otherwise here."""
    plan = load_plan(path)
    for sentence in differences(plan):
        log.warning("%s: %s", printable(os.fspath(path)), sentence)
    return plan


def dataloader_kwargs(path: Source, *, worker_init_fn: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Keyword arguments for torch's DataLoader.

    Where the plan limits the threads of workers, that is done at their start, after your own `worker_init_fn`.
    """
    found = dict(plan_here(path).dataloader)
    threads = found.pop(THREADS_SETTING, None)
    if threads is not None:
        found["worker_init_fn"] = LimitThreads(threads, worker_init_fn)
    elif worker_init_fn is not None:
        found["worker_init_fn"] = worker_init_fn
    return found


def loader_settings(path: Source) -> dict[str, Any]:
    """Keys of a config for penstock.Loader."""
    found = dict(plan_here(path).loader)
    if not found:
        log.warning("%s: sets nothing of penstock.Loader, which finds its settings itself", printable(os.fspath(path)))
    return found
