"""Hooks that time copies to the GPU and waits for it, where Python code asks for them.

Only `Tensor.to` and `Tensor.cuda` count as copies; `copy_` into a tensor on the GPU does not. Waits inside torch's own
code, such as those of `nonzero`, are not timed either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from penstock.watcher.device_time import DeviceTimer
from penstock.watcher.hooks.in_use import InUse
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks

WAITING_METHODS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")
"""Methods of a tensor that wait for the GPU if the tensor is there."""

OnDevice = Callable[[torch.Tensor], bool]
"""Returns whether a tensor is on the GPU."""


def is_cuda(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on the GPU."""
    return tensor.is_cuda


def watch_device(phases: PhaseHooks, patches: Patches, in_use: InUse, on_device: OnDevice = is_cuda) -> None:
    """Time copies to the GPU and waits for it. A tensor in host memory costs one call of `on_device`."""
    for name in WAITING_METHODS:
        patches.set(torch.Tensor, name, _time_wait(phases, getattr(torch.Tensor, name), on_device))
    patches.set(torch.Tensor, "to", _time_copy(phases, torch.Tensor.to, on_device, in_use))
    patches.set(torch.Tensor, "cuda", _time_cuda(phases, torch.Tensor.cuda, in_use))
    patches.set(torch.cuda, "synchronize", phases.wrap("sync", torch.cuda.synchronize))


def watch_graph_captures(
    timer: DeviceTimer, patches: Patches, in_use: InUse, graph_class: Any = torch.cuda.CUDAGraph
) -> None:
    """Let the timer query no events while the script captures a CUDA graph."""
    begin, end = graph_class.capture_begin, graph_class.capture_end

    @functools.wraps(begin)
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        timer.capture_begins()
        in_use.note_graph()
        try:
            return begin(graph, *args, **kwargs)
        except BaseException:
            timer.capture_ends()
            raise

    @functools.wraps(end)
    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(graph, *args, **kwargs)
        finally:
            timer.capture_ends()

    patches.set(graph_class, "capture_begin", capture_begin)
    patches.set(graph_class, "capture_end", capture_end)


def _time_wait(phases: PhaseHooks, method: Callable[..., Any], on_device: OnDevice) -> Callable[..., Any]:
    timed = phases.wrap("sync", method)

    @functools.wraps(method)
    def wait(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (timed if on_device(tensor) else method)(tensor, *args, **kwargs)

    return wait


def _time_copy(
    phases: PhaseHooks, method: Callable[..., Any], on_device: OnDevice, in_use: InUse
) -> Callable[..., Any]:
    to_device = phases.wrap("h2d", method)
    to_host = phases.wrap("sync", method)
    session = phases.session

    @functools.wraps(method)
    def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        source_on_device = on_device(tensor)
        if session.unprofiled and not source_on_device:
            return method(tensor, *args, **kwargs)
        kind = _target_device_type(kwargs.get("device", args[0] if args else None))
        if kind is None:
            return method(tensor, *args, **kwargs)
        target_on_device = kind != "cpu"
        if source_on_device == target_on_device:
            return method(tensor, *args, **kwargs)
        if target_on_device:
            in_use.note_copy(tensor, non_blocking=bool(kwargs.get("non_blocking") or True in args[1:3]))
        return (to_device if target_on_device else to_host)(tensor, *args, **kwargs)

    return copy


def _time_cuda(phases: PhaseHooks, method: Callable[..., Any], in_use: InUse) -> Callable[..., Any]:
    timed = phases.wrap("h2d", method)

    @functools.wraps(method)
    def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not phases.session.unprofiled and not tensor.is_cuda:
            in_use.note_copy(tensor, non_blocking=bool(kwargs.get("non_blocking") or True in args[1:2]))
        return timed(tensor, *args, **kwargs)

    return copy


def _target_device_type(target: object) -> str | None:
    """Return the device type that the first argument of `Tensor.to` names; None if it is a dtype."""
    if isinstance(target, torch.device):
        return target.type
    if isinstance(target, str):
        return target.partition(":")[0]
    if isinstance(target, torch.Tensor):
        return target.device.type
    return "cuda" if isinstance(target, int) and not isinstance(target, bool) else None
