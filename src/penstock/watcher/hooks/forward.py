"""The forward pass: calls of modules from outside any other module.

Hooks on every module would cost more than the step can bear, and hooks in a module would travel with its pickles and
copies. So the first calls of a pass are caught at torch.nn.Module, which shows what is called from outside; from then
on only the classes of those modules are timed, at their call, with a depth to tell the outermost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.session import Session
from penstock.watcher.step_sampling import OPENING

LOOK_STEPS = OPENING
"""Of every pass: a teacher, a loss or an evaluation's model may be called after the first."""
LOOK_EVERY = 256
"""Steps after which to look again, for a module that joins in later."""
QUIET_STEPS = 8
"""Looked at without any forward pass: look again then, and after twice as many, and so on."""


class ForwardHook:
    """Times the outermost modules."""

    def __init__(self, phases: PhaseHooks, patches: Patches) -> None:
        self._phases = phases
        self._patches = patches
        self._stop_looking: Callable[[], None] | None = None
        self._wanted = False
        self._classes: set[type] = set()
        self._depth = 0
        self._seen = False
        self._quiet = 0
        self._again = 0
        """The step from which on to look again."""
        phases.hooks.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """As for the session: a model that is loaded elsewhere, perhaps without us, has nobody to tell."""
        return SimpleNamespace, (), {"_depth": 1}

    def on(self) -> None:
        """What it takes is known when the step begins."""

    def off(self) -> None:
        """The classes' own calls stay ours, with one question: a class that changes for ever costs more."""
        self._wanted = False
        self._pause()

    def step(self, number: int) -> None:
        """A step of that number in its pass begins, and is looked at."""
        self._quiet = 0 if self._seen else self._quiet + 1
        self._seen = False
        self._depth = 0
        quiet = self._quiet >= QUIET_STEPS and self._quiet.bit_count() == 1
        self._wanted = number < LOOK_STEPS or number >= self._again or quiet
        if self._wanted:
            self._again = number + LOOK_EVERY
            self._look()
        elif self._stop_looking is not None:
            self._pause()

    def _look(self) -> None:
        """Catch the next call of any module."""
        if self._stop_looking is not None:
            return
        call = torch.nn.Module.__call__

        def found(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or self._depth or not self._phases.counts():
                return call(module, *args, **kwargs)
            self._pause()  # what the module does inside, and a compiler that looks at it, sees torch as it is
            try:
                kind = type(module)
                plain = kind.__call__ is call
                self._adopt(kind)
                # A class with a call of its own is under way in it already: this time goes untimed.
                return module(*args, **kwargs) if plain else call(module, *args, **kwargs)
            finally:
                if self._wanted:
                    self._look()

        self._stop_looking = self._patches.set(torch.nn.Module, "__call__", functools.wraps(call)(found))

    def _pause(self) -> None:
        if self._stop_looking is not None:
            self._stop_looking()
            self._stop_looking = None

    def _adopt(self, kind: type[torch.nn.Module]) -> None:
        if kind in self._classes:
            return
        self._classes.add(kind)
        own = vars(kind).get("__call__")
        timed = _timed(self, self._phases.session, kind, own)
        self._patches.set(kind, "__call__", functools.wraps(own or torch.nn.Module.__call__)(timed))


def _timed(forward: ForwardHook, session: Session, kind: type[torch.nn.Module], own: Any) -> Callable[..., Any]:
    """The call of a class. No method: inside of one, `super` would bring our own class along, wherever this goes."""

    def timed(module: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(own, module) if own else super(kind, module).__call__
        if is_dynamo_compiling() or session.resting or forward._depth or not forward._phases.enter("forward"):
            return call(*args, **kwargs)
        forward._seen = True
        forward._depth = 1
        if forward._wanted:
            forward._pause()
        try:
            return call(*args, **kwargs)
        finally:
            forward._phases.leave()
            forward._depth = 0
            if forward._wanted:
                forward._look()

    return timed
