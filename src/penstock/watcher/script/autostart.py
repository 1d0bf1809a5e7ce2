"""The import hook in every Python process of a run: it starts the recording when a loader is first iterated over.

In a script that uses no loader it starts when gradients are cleared for the third time. Until then it costs nothing.
Launchers such as torchrun, and the workers of loaders, record nothing; each process that trains records itself.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RUN_VARIABLE = "PENSTOCK_RUN"
"""The environment variable with the settings of the run, as JSON; runner.py sets it."""
STOP_FILE = "stop"
"""A file in the run's folder; a process makes it when one of its loaders has had the requested number of steps."""
COMPUTE_PROBE = "compute"
"""The value of `RunLine.probe` in the recording of a step probe."""
LOADER_CLASSES = {
    "torch.utils.data.dataloader": "DataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
    "penstock.loader": "Loader",
    "penstock.dataloader": "DataLoader",
}
"""Modules, each with the name of its class that may define an `__iter__` of its own."""
OPTIMIZER_MODULE = "torch.optim.optimizer"
STEPS_WITHOUT_LOADER = 3
"""Calls of `zero_grad` before any iteration over a loader, from which on a script counts as one without a loader."""
on_loader_import: list[Callable[[Any], None]] = []
"""Functions that are called with each such class that is imported after the recording has started."""
_remove_iter_hooks: list[Callable[[], None]] = []
"""Functions that restore the classes' own methods. Empty once the recording has started."""
_started = False


def install_import_hook() -> None:
    """Wait for the import of a loader class. It runs while the interpreter starts, so it imports nothing more."""
    if RUN_VARIABLE in os.environ:
        sys.meta_path.insert(0, _LoaderImportHook())


class _LoaderImportHook:
    """A finder on `sys.meta_path` that handles the classes of LOADER_CLASSES after their modules were executed.

    The modules are found and loaded by the other finders.
    """

    def __init__(self) -> None:
        self._wanted = {**LOADER_CLASSES, OPTIMIZER_MODULE: "Optimizer"}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        class_name = self._wanted.pop(name, None)
        if class_name is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_hook(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if name == OPTIMIZER_MODULE:
                _start_without_loader(module.Optimizer)
                return
            loader_class = _class_with_own_iter(module, class_name)
            if loader_class is None:
                return
            if _started:
                for action in on_loader_import:
                    action(loader_class)
            else:
                _start_at_first_iter(loader_class)
            if name == "torch.utils.data.dataloader":
                _apply_plan(loader_class)

        loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


def _class_with_own_iter(module: ModuleType, name: str) -> Any:
    """Return the class of that name; None if this version has none, or if it inherits `__iter__`."""
    found = getattr(module, name, None)
    return found if found is not None and "__iter__" in vars(found) else None


def imported_loader_classes() -> list[Any]:
    """Return the classes of LOADER_CLASSES that are imported by now."""
    found = [
        _class_with_own_iter(sys.modules[module], name)
        for module, name in LOADER_CLASSES.items()
        if module in sys.modules
    ]
    return [loader_class for loader_class in found if loader_class is not None]


def _start_at_first_iter(loader_class: Any) -> None:
    make = loader_class.__iter__

    def __iter__(loader: Any) -> Any:
        if in_dataloader_worker():
            return make(loader)
        start_recording()
        return loader_class.__iter__(loader)

    def remove() -> None:
        loader_class.__iter__ = make

    loader_class.__iter__ = __iter__
    _remove_iter_hooks.append(remove)


def _start_without_loader(optimizer_class: Any) -> None:
    if _started:
        return
    zero_grad, calls = optimizer_class.zero_grad, 0

    @functools.wraps(zero_grad)
    def counted(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= STEPS_WITHOUT_LOADER and not in_dataloader_worker():
            start_recording()  # which takes this method away
        return zero_grad(optimizer, *args, **kwargs)

    def remove() -> None:
        if optimizer_class.zero_grad is counted:
            optimizer_class.zero_grad = zero_grad

    optimizer_class.zero_grad = counted
    _remove_iter_hooks.append(remove)


def in_dataloader_worker() -> bool:
    """Return whether this process is a worker of a DataLoader; a loader in there is not a training."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _apply_plan(loader_class: Any) -> None:
    """Apply the run's plan, if it has one. After an error the script keeps its own settings."""
    try:
        plan = json.loads(os.environ[RUN_VARIABLE]).get("dataloader")
        if plan:
            from penstock.watcher.script.apply_plan import apply_plan

            apply_plan(plan, loader_class)
    except Exception as error:
        import logging

        logging.getLogger("penstock").warning("the plan is not applied: %s: %s", type(error).__name__, error)


def start_recording() -> None:
    """Start the recording if this process belongs to a run. A second call does nothing.

    It is called when a loader is first iterated over, or when the script itself calls `penstock.watch`. An error is
    logged, and the script goes on without a recording.
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
