"""Inside every Python process of a run: wait, at no cost, until it iterates over a loader; then watch it.

So a launcher such as torchrun, and the workers of loaders, record nothing; a process that trains records itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RUN_VARIABLE = "PENSTOCK_RUN"
STOP_FILE = "enough"
"""The file in the run's folder by which a process says that a loader of its has had its steps."""
COMPUTE_PROBE = "compute"
"""What the recording of a probe says that it is of."""
LOADER_CLASSES = {
    "torch.utils.data.dataloader": "DataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
    "penstock.loader": "Loader",
}
"""Modules, and the classes in them with an `iter` of their own."""
on_loader_import: list[Callable[[Any], None]] = []
"""Told of such a class that is imported when the watching has begun."""
_remove_iter_hooks: list[Callable[[], None]] = []
"""What takes our stand-ins out again, while no loader has been iterated over."""
_started = False


def install_import_hook() -> None:
    """Called while the interpreter starts: nothing is imported here that the script did not ask for."""
    if RUN_VARIABLE in os.environ:
        sys.meta_path.insert(0, _LoaderImportHook())


class _LoaderImportHook:
    """Sees the modules of loaders being imported; whatever is done with their specs is done by others."""

    def __init__(self) -> None:
        self._wanted = dict(LOADER_CLASSES)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        kind = self._wanted.pop(name, None)
        if kind is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_wait(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            found = _class_with_own_iter(module, kind)
            if found is None:
                return
            if _started:
                for tell in on_loader_import:
                    tell(found)
            else:
                _start_at_first_iter(found)
            if kind == "DataLoader":
                _apply_plan(found)

        loader.exec_module = execute_and_wait  # type: ignore[method-assign]
        return spec


def _class_with_own_iter(module: ModuleType, name: str) -> Any:
    """The class of that name; None where another version has none, or leaves `iter` to its base."""
    kind = getattr(module, name, None)
    return kind if kind is not None and "__iter__" in vars(kind) else None


def imported_loader_classes() -> list[Any]:
    """Such classes as the script has imported by now."""
    found = [
        _class_with_own_iter(sys.modules[module], name)
        for module, name in LOADER_CLASSES.items()
        if module in sys.modules
    ]
    return [kind for kind in found if kind is not None]


def _start_at_first_iter(kind: Any) -> None:
    make = kind.__iter__

    def __iter__(loader: Any) -> Any:
        if in_dataloader_worker():
            return make(loader)
        start_recording()
        return kind.__iter__(loader)

    def step_aside() -> None:
        kind.__iter__ = make

    kind.__iter__ = __iter__
    _remove_iter_hooks.append(step_aside)


def in_dataloader_worker() -> bool:
    """A loader inside a worker of another is no training."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _apply_plan(kind: Any) -> None:
    """Where the run is to have a plan's settings. What goes wrong in here leaves the script its own."""
    try:
        plan = json.loads(os.environ[RUN_VARIABLE]).get("dataloader")
        if plan:
            from penstock.watcher.script.apply_plan import apply_plan

            apply_plan(plan, kind)
    except Exception as error:
        import logging

        logging.getLogger("penstock").warning("the plan is not applied: %s: %s", type(error).__name__, error)


def start_recording() -> None:
    """Once, if a run waits for it: when a loader is first iterated over, or watched by the script itself.

    What goes wrong in here is told and forgotten: the script goes on unwatched.
    """
    global _started
    if _started or RUN_VARIABLE not in os.environ:
        return
    _started = True
    while _remove_iter_hooks:
        _remove_iter_hooks.pop()()
    import logging

    try:
        from penstock.watcher.record_process import record_this_process

        record_this_process(json.loads(os.environ[RUN_VARIABLE]))
    except Exception as error:
        logging.getLogger("penstock").warning("this process is not watched: %s: %s", type(error).__name__, error)
