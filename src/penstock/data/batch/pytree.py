"""How the samples of a dataset nest, and how a batch of them does: as torch's `default_collate` has it.

Mappings, tuples, named tuples and lists are taken apart into leaves with names such as `sample['boxes'][0]`. Tensors,
arrays and numbers are leaves that fit into a slab; a string, or anything else, is a leaf that is delivered in a list.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = "sample"
_KNOWN = frozenset(np.dtype(code).str for code in "?BHILbhilqQefdFD")
"""What numpy and torch both have."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that fits into a slab."""

    array: NDArray[Any]
    torch_dtype: str = ""
    """Set where numpy has no such numbers (bfloat16): then the array holds their bits."""

    def __str__(self) -> str:
        return f"{self.torch_dtype or self.array.dtype}{list(self.array.shape)}"


def as_leaf(value: Any) -> Leaf | None:
    """The value as an array, if torch would make a tensor of it. Torch is looked up, never imported."""
    if isinstance(value, np.ndarray | np.generic):
        return Leaf(np.asarray(value)) if value.dtype.str in _KNOWN else None
    if isinstance(value, bool | int | float):
        kind = bool if isinstance(value, bool) else np.int64 if isinstance(value, int) else np.float64
        return Leaf(np.asarray(value, kind))
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    return _as_bits(torch, value.detach())


def _as_bits(torch: Any, tensor: Any) -> Leaf | None:
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return None
    try:
        return Leaf(tensor.numpy())
    except TypeError:  # numbers that numpy does not have
        bits = {1: torch.uint8, 2: torch.int16}.get(tensor.itemsize)
        return None if bits is None else Leaf(tensor.view(bits).numpy(), str(tensor.dtype).removeprefix("torch."))


def flatten(sample: Any, name: str = ROOT) -> dict[str, Any]:
    """The leaves of a sample, by name, from left to right."""
    children = _children(sample)
    if children is None:
        return {name: sample}
    leaves: dict[str, Any] = {}
    for place, child in children:
        leaves |= flatten(child, name + place)
    return leaves


def unflatten(like: Any, leaves: Mapping[str, Any], name: str = ROOT) -> Any:
    """A structure like that one with other leaves; tuples become lists, as torch has it."""
    children = _children(like)
    if children is None:
        return leaves[name]
    made = [unflatten(child, leaves, name + place) for place, child in children]
    if not isinstance(like, Mapping):  # of strings, torch makes a list under a key, and a tuple in a sequence
        is_leaf = [_children(child) is None for _, child in children]
        pairs = zip(made, is_leaf, strict=True)
        made = [tuple(value) if leaf and isinstance(value, list) else value for value, leaf in pairs]
    return _with_children(like, made)


def skeleton(sample: Any) -> Any:
    """The same structure without the values, to keep."""
    return unflatten(sample, dict.fromkeys(flatten(sample)))


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """What it consists of, each with its place; None for a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", value[key]) for key in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{field}", child) for field, child in zip(value._fields, value, strict=True)]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [(f"[{place}]", child) for place, child in enumerate(value)]
    return None


def _with_children(like: Any, children: list[Any]) -> Any:
    """Another of the same kind; where its type does not take tensors, a plain dict or list."""
    if isinstance(like, Mapping):
        return _mapping(like, dict(zip(like, children, strict=True)))
    if isinstance(like, tuple):
        return type(like)(*children) if hasattr(like, "_fields") else children
    try:
        if not isinstance(like, MutableSequence):
            return type(like)(children)
        clone = copy.copy(like)
        for place, child in enumerate(children):
            clone[place] = child
        return clone
    except TypeError:
        return children


def _mapping(like: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    try:
        if not isinstance(like, MutableMapping):
            return type(like)(items)  # type: ignore[call-arg]
        clone = copy.copy(like)
        clone.update(items)
        return clone
    except TypeError:
        return items
