"""Hooks that time the forward pass: calls of modules from outside any other module.

Hooks on every module would cost too much of a step, and hooks in a module would be pickled and copied with it. Instead,
the first calls of an epoch are caught at `torch.nn.Module.__call__`, which shows which modules are called from outside.
From then on, only `__call__` of their classes is timed, with a depth that shows which call is the outermost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from penstock.watcher.hooks.in_use import InUse
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.session import Session
from penstock.watcher.step_sampling import FIRST_OF_EPOCH

SEARCH_STEPS = FIRST_OF_EPOCH
"""Steps at the start of every epoch in which new modules are searched for.

A teacher, a loss or an evaluation's model may be called only after the first step."""
SEARCH_INTERVAL = 256
"""Steps after which modules are searched for again, because one may be used only later."""
QUIET_STEPS = 8
"""Profiled steps without a forward pass after which modules are searched for again; then after 16, 32 and so on."""


class ForwardHook:
    """Finds the classes of the outermost modules and times their calls."""

    def __init__(self, phases: PhaseHooks, patches: Patches, in_use: InUse) -> None:
        self._phases = phases
        self._in_use = in_use
        self._patches = patches
        self._undo_search: Callable[[], None] | None = None
        """Restores `torch.nn.Module.__call__` while modules are searched for."""
        self._searching = False
        """Whether modules are searched for in this step."""
        self._classes: set[type] = set()
        self._depth = 0
        """1 inside an outermost module, else 0."""
        self._forward_seen = False
        """Whether a forward pass was timed since the last profiled step began."""
        self._steps_without_forward = 0
        """Profiled steps in a row in which none was."""
        self._next_search = 0
        """The step from which on modules are searched for again."""
        phases.hooks.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an object that times nothing, because a pickled model class may be loaded without Penstock."""
        return SimpleNamespace, (), {"_depth": 1}

    def enable(self) -> None:
        """Do nothing: `begin_step` decides whether to search for modules."""

    def disable(self) -> None:
        """Stop searching. The patched classes stay patched, because changing a class at every step costs more."""
        self._searching = False
        self._stop_search()

    def begin_step(self, number: int) -> None:
        """Begin a profiled step, with its number in the epoch, and decide whether to search for modules in it."""
        self._steps_without_forward = 0 if self._forward_seen else self._steps_without_forward + 1
        self._forward_seen = False
        self._depth = 0
        quiet = self._steps_without_forward >= QUIET_STEPS and self._steps_without_forward.bit_count() == 1
        self._searching = number < SEARCH_STEPS or number >= self._next_search or quiet
        if self._searching:
            self._next_search = number + SEARCH_INTERVAL
            self._start_search()
        elif self._undo_search is not None:
            self._stop_search()

    def _start_search(self) -> None:
        """Catch the next call of any module."""
        if self._undo_search is not None:
            return
        call = torch.nn.Module.__call__

        def found(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or self._depth or not self._phases.in_step():
                return call(module, *args, **kwargs)
            self._stop_search()  # inner modules, and a compiler that inspects the module, see torch unchanged
            try:
                kind = type(module)
                plain = kind.__call__ is call
                self._time_class(kind)
                # A class with its own __call__ is inside it already, so this first call is not timed.
                return module(*args, **kwargs) if plain else call(module, *args, **kwargs)
            finally:
                if self._searching:
                    self._start_search()

        self._undo_search = self._patches.set(torch.nn.Module, "__call__", functools.wraps(call)(found))

    def _stop_search(self) -> None:
        if self._undo_search is not None:
            self._undo_search()
            self._undo_search = None

    def _time_class(self, kind: type[torch.nn.Module]) -> None:
        if kind in self._classes:
            return
        self._classes.add(kind)
        own = vars(kind).get("__call__")
        timed = _timed_call(self, self._phases.session, kind, own)
        self._patches.set(kind, "__call__", functools.wraps(own or torch.nn.Module.__call__)(timed))


def _timed_call(forward: ForwardHook, session: Session, kind: type[torch.nn.Module], own: Any) -> Callable[..., Any]:
    """Return a timed `__call__` for a class.

    This is not a method of ForwardHook: `super` in a method puts the method's class into the closure, and ForwardHook
    would be pickled along where a script pickles the class of its model.
    """

    def timed(module: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(own, module) if own else super(kind, module).__call__
        if is_dynamo_compiling() or session.unprofiled or forward._depth or not forward._phases.enter("forward"):
            return call(*args, **kwargs)
        forward._forward_seen = True
        forward._depth = 1
        forward._in_use.note_model(module, args)
        if forward._searching:
            forward._stop_search()
        try:
            return call(*args, **kwargs)
        finally:
            forward._phases.leave()
            forward._depth = 0
            if forward._searching:
                forward._start_search()

    return timed
