"""The backward pass and the optimizer's step."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from penstock.watcher.hooks.patches import FunctionPatch, Patches
from penstock.watcher.hooks.phases import PhaseHooks


def watch_update(phases: PhaseHooks, patches: Patches) -> None:
    """Tensor.backward ends up in torch.autograd.backward; every optimizer calls torch's global hooks."""
    around = functools.partial(phases.around, "backward")
    patches.set(torch.autograd, "grad", around(torch.autograd.grad))
    optimizers = _OptimizerHooks(phases)
    patches.also(optimizers.remove)
    phases.hooks += (FunctionPatch(torch.autograd, "backward", around), optimizers)
    phases.look()


class _OptimizerHooks:
    """Before and after the step of any."""

    def __init__(self, phases: PhaseHooks) -> None:
        self._phases = phases
        self._outermost: list[bool] = []
        """Steps under way: one that calls the step of its base class comes by twice, one that raises never leaves."""
        self._called = False
        begins, ends = self._begins, self._ends
        self._hooks = (
            (register_optimizer_step_pre_hook(begins), begins),
            (register_optimizer_step_post_hook(ends), ends),
        )

    def on(self) -> None:
        """The same ones, under the same numbers: a compiler that looked at a step of an optimizer remembers them."""
        self._called = False
        for handle, hook in self._hooks:
            hooks = handle.hooks_dict_ref()
            if hooks is not None:
                hooks[handle.id] = hook

    def off(self) -> None:
        """They stay in where none was called: then the step is compiled, with them, and would be compiled again."""
        if self._called:
            self.remove()

    def remove(self) -> None:
        """Out, whoever may have been compiled."""
        self._outermost.clear()
        for handle, _ in self._hooks:
            handle.remove()

    def _begins(self, *_: Any) -> None:
        if is_dynamo_compiling():
            return
        self._called = True
        if self._phases.session.resting:
            return
        if self._phases.enter("optimizer"):
            self._outermost[:] = [True]
        elif self._phases.is_open("optimizer"):
            self._outermost.append(False)

    def _ends(self, *_: Any) -> None:
        if not is_dynamo_compiling() and self._outermost and self._outermost.pop():
            self._phases.leave()
