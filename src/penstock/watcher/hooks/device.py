"""Copies to the device and waits for it, as Python code asks for them.

Only `Tensor.to` and `Tensor.cuda` count as copies: `copy_` into a tensor of the device does not. A wait that torch
itself needs, as in `nonzero`, is not seen either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from penstock.watcher.device_time import DeviceTimer
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks

WAITS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")

OnDevice = Callable[[torch.Tensor], bool]


def is_cuda(tensor: torch.Tensor) -> bool:
    """Whether what is asked of it may have to wait for a device."""
    return tensor.is_cuda


def watch_device(phases: PhaseHooks, patches: Patches, on_device: OnDevice = is_cuda) -> None:
    """Tensors of the host pass through with one question."""
    for name in WAITS:
        patches.set(torch.Tensor, name, _waiting(phases, getattr(torch.Tensor, name), on_device))
    patches.set(torch.Tensor, "to", _copying(phases, torch.Tensor.to, on_device))
    patches.set(torch.Tensor, "cuda", phases.around("h2d", torch.Tensor.cuda))
    patches.set(torch.cuda, "synchronize", phases.around("sync", torch.cuda.synchronize))


def watch_captures(timer: DeviceTimer, patches: Patches, graph: Any = torch.cuda.CUDAGraph) -> None:
    """While the script captures a graph, the timer keeps quiet."""
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        timer.capture_begins()
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

    patches.set(graph, "capture_begin", capture_begin)
    patches.set(graph, "capture_end", capture_end)


def _waiting(phases: PhaseHooks, method: Callable[..., Any], on_device: OnDevice) -> Callable[..., Any]:
    timed = phases.around("sync", method)

    @functools.wraps(method)
    def asked(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (timed if on_device(tensor) else method)(tensor, *args, **kwargs)

    return asked


def _copying(phases: PhaseHooks, method: Callable[..., Any], on_device: OnDevice) -> Callable[..., Any]:
    out = phases.around("h2d", method)
    back = phases.around("sync", method)
    session = phases.session

    @functools.wraps(method)
    def moved(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        here = on_device(tensor)
        if session.resting and not here:
            return method(tensor, *args, **kwargs)
        kind = _kind(kwargs.get("device", args[0] if args else None))
        if kind is None:
            return method(tensor, *args, **kwargs)
        there = kind != "cpu"
        chosen = method if here == there else out if there else back
        return chosen(tensor, *args, **kwargs)

    return moved


def _kind(target: object) -> str | None:
    """Of the device that `to` is asked to go to; None if it is only about the type of the numbers."""
    if isinstance(target, torch.device):
        return target.type
    if isinstance(target, str):
        return target.partition(":")[0]
    if isinstance(target, torch.Tensor):
        return target.device.type
    return "cuda" if isinstance(target, int) and not isinstance(target, bool) else None
