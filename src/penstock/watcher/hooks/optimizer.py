"""Hooks that time the backward pass and the optimizer's step."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from penstock.watcher.hooks.in_use import InUse
from penstock.watcher.hooks.patches import FunctionPatch, Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.hooks.without_loader import StepsWithoutLoader


def watch_backward_and_optimizer(phases: PhaseHooks, patches: Patches, in_use: InUse) -> None:
    """Time the backward pass and the steps of all optimizers.

    `Tensor.backward` calls `torch.autograd.backward`, and every optimizer calls torch's global step hooks.
    """
    wrap = functools.partial(phases.wrap, "backward")
    patches.set(torch.autograd, "grad", wrap(torch.autograd.grad))
    optimizers = _OptimizerHooks(phases, in_use)
    patches.on_undo(optimizers.remove)
    phases.hooks += (FunctionPatch(torch.autograd, "backward", wrap), optimizers)
    phases.start_profiling()


class _OptimizerHooks:
    """torch's global hooks before and after the step of every optimizer."""

    def __init__(self, phases: PhaseHooks, in_use: InUse) -> None:
        self._phases = phases
        self._in_use = in_use
        self._without_loader = StepsWithoutLoader(phases.session)
        self._outermost: list[bool] = []
        """One entry per running optimizer step: whether it is the outermost one.

        A step that calls the step of its base class enters twice; a step that raises never leaves."""
        self._called = False
        """Whether a hook was called since the hooks were put in."""
        before, after = self._before_step, self._after_step
        self._hooks = (
            (register_optimizer_step_pre_hook(before), before),
            (register_optimizer_step_post_hook(after), after),
        )

    def enable(self) -> None:
        """Put the same hooks in under the same ids, because a compiled optimizer step is guarded by both."""
        self._called = False
        for handle, hook in self._hooks:
            hooks = handle.hooks_dict_ref()
            if hooks is not None:
                hooks[handle.id] = hook

    def disable(self) -> None:
        """Take the hooks out if they were called.

        If they were not, the step is compiled with them, and taking them out would compile it again.
        """
        if self._called:
            self.remove()

    def remove(self) -> None:
        """Take the hooks out, even if a step is compiled with them."""
        self._outermost.clear()
        for handle, _ in self._hooks:
            handle.remove()

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if is_dynamo_compiling():
            return
        self._called = True
        if self._phases.session.unprofiled:
            return
        if self._phases.enter("optimizer"):
            self._outermost[:] = [True]
            self._in_use.note_optimizer(optimizer)
        elif self._phases.is_open("optimizer"):
            self._outermost.append(False)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if is_dynamo_compiling():
            return
        if self._outermost and self._outermost.pop():
            self._phases.leave()
        if not self._outermost:
            self._without_loader.optimizer_stepped(optimizer)
