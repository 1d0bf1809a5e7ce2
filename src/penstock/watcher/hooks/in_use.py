"""Notes what a training uses already, so that it is never proposed: autocast, torch.compile, fused optimizers and more.

The hooks of the phases pass on the module, the optimizer and the copied tensors of a few profiled steps. What they show
is recorded as an event, once, and again if it changes.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch

from penstock.recording.format import EventLine
from penstock.watcher.session import Session

INSPECTIONS = 6
"""Calls of each kind that are inspected: settings hardly change after the first steps."""
GRAD_SCALER_FRAMES = 6
"""Frames between the step of a GradScaler and the hook of the optimizer that it calls, at most."""


class InUse:
    """The settings in use of one session, by name."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._left = Counter({"model": INSPECTIONS, "optimizer": INSPECTIONS, "copy": INSPECTIONS})
        self._known: dict[str, Any] = {}

    def note_model(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """Inspect the outermost module and its input, as it is called."""
        if self._take("model"):
            with self._session.guard():
                self._record(_of_model(module, args))

    def note_optimizer(self, optimizer: Any) -> None:
        """Inspect an optimizer whose step begins."""
        if self._take("optimizer"):
            with self._session.guard():
                self._record(_of_optimizer(optimizer))

    def note_copy(self, tensor: torch.Tensor, *, non_blocking: bool) -> None:
        """Inspect a tensor that is copied to the device."""
        if self._take("copy"):
            with self._session.guard():
                self._record({"pinned_batches": tensor.is_pinned(), "non_blocking": non_blocking})

    def note_graph(self) -> None:
        """Note that the script captures a CUDA graph."""
        with self._session.guard():
            self._record({"cuda_graphs": True})

    def _take(self, kind: str) -> bool:
        if self._session.unprofiled or self._session.off or not self._left[kind]:
            return False
        self._left[kind] -= 1
        return True

    def _record(self, found: dict[str, Any]) -> None:
        """Record what was found, with what is known, if something is new. What was in use once counts as used."""
        new = {name: value for name, value in found.items() if value and self._known.get(name) != value}
        new |= {name: value for name, value in found.items() if not value and name not in self._known}
        if new:
            self._known |= new
            self._session.put(EventLine(what="in_use", at_s=self._session.now(), detail=dict(self._known)))


def _of_model(module: torch.nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    kinds = {kind.__name__ for kind in type(module).__mro__}
    found: dict[str, Any] = {
        "compiled": "OptimizedModule" in kinds or getattr(module, "_compiled_call_impl", None) is not None,
        "ddp": "DistributedDataParallel" in kinds,
        "fsdp": not kinds.isdisjoint({"FullyShardedDataParallel", "FSDPModule"}),
        "autocast": "",
    }
    parameter = next(module.parameters(), None)
    if parameter is not None:
        found["parameters"] = str(parameter.dtype).removeprefix("torch.")
        device = parameter.device.type
        if torch.is_autocast_enabled(device):
            found["autocast"] = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    found["channels_last"] = any(map(_is_channels_last, (*args[:1], *_weights(module))))
    return found


def _weights(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the first parameter that has the shape of a convolution's weight."""
    return next(([each] for each in module.parameters() if each.dim() == 4 and each.shape[1] > 1), [])


def _is_channels_last(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or value.is_contiguous():
        return False
    return value.is_contiguous(memory_format=torch.channels_last)


def _of_optimizer(optimizer: Any) -> dict[str, Any]:
    groups = getattr(optimizer, "param_groups", None) or [{}]
    found = {"optimizer": type(optimizer).__name__, "fused_optimizer": bool(groups[0].get("fused"))}
    frame = sys._getframe(1)
    for _ in range(GRAD_SCALER_FRAMES):
        if frame.f_code.co_filename.endswith("grad_scaler.py"):
            found["grad_scaler"] = True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return found
