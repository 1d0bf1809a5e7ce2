"""Batches of any structure to a device, without the loop waiting for the copy."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch


def to_device(batch: Any, device: str | torch.device, *, pin: bool = False) -> Any:
    """The same structure with every tensor on the device: mappings, tuples, named tuples, lists and dataclasses.

    Whatever else has a `to` of its own (a packed sequence) is moved by it, and the rest is left as it is. The loop does
    not wait for copies out of pinned memory; `pin` has other memory copied to such first.
    """
    target = torch.device(device)
    pinned = pin and target.type == "cuda"

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            source = leaf.pin_memory() if pinned and leaf.device.type == "cpu" and not leaf.is_pinned() else leaf
            return source.to(target, non_blocking=True)
        return leaf.to(target, non_blocking=True) if callable(getattr(leaf, "to", None)) else leaf

    return mapped(batch, move)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A structure like that one, its leaves changed."""
    if isinstance(value, torch.Tensor | str | bytes):
        return change(value)
    if isinstance(value, Mapping):
        return _mapping(value, {key: mapped(child, change) for key, child in value.items()})
    if isinstance(value, tuple):
        made = [mapped(child, change) for child in value]
        # named tuples take their fields one by one; torch's packed sequence is one, and knows how to move itself
        if hasattr(value, "_fields"):
            return change(value) if callable(getattr(value, "to", None)) else type(value)(*made)
        return tuple(made)
    if isinstance(value, list):
        return [mapped(child, change) for child in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: mapped(getattr(value, name), change) for name in fields})
    return change(value)


def _mapping(like: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Another of the same kind; where its type cannot be filled so, a plain dict."""
    if type(like) is dict:
        return items
    try:
        clone = copy.copy(like)
        clone.update(items)  # type: ignore[attr-defined]
    except (TypeError, AttributeError):
        return items
    return clone
