"""The backward pass and the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from penstock.observe.hooks.patches import Patches
from penstock.observe.hooks.phases import Phases


def watch_update(phases: Phases, patches: Patches) -> None:
    """Tensor.backward ends up in torch.autograd.backward; every optimizer calls torch's global hooks."""
    for name in ("backward", "grad"):
        patches.set(torch.autograd, name, phases.around("backward", getattr(torch.autograd, name)))
    outermost: list[bool] = []
    """Steps under way: one that calls the step of its base class comes by twice, one that raises never leaves."""

    def begins(*_: Any) -> None:
        if is_dynamo_compiling():
            return
        if phases.enter("optimizer"):
            outermost[:] = [True]
        elif phases.is_open("optimizer"):
            outermost.append(False)

    def ends(*_: Any) -> None:
        if not is_dynamo_compiling() and outermost and outermost.pop():
            phases.leave()

    patches.also(register_optimizer_step_pre_hook(begins).remove)
    patches.also(register_optimizer_step_post_hook(ends).remove)
