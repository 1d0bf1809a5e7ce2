"""The structure of a dataset's samples, and of a batch of them, as torch's `default_collate` builds it.

Mappings, tuples, named tuples and lists are flattened into leaves with names such as `sample['boxes'][0]`. Tensors,
arrays and numbers are leaves that fit into a slab; a string, or anything else, is a leaf that is delivered in a list.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import TENSOR_DTYPES
from penstock.errors import SampleError

ROOT = "sample"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that fits into a slab."""

    array: NDArray[Any]
    torch_dtype: str = ""
    """Set for a dtype that numpy does not have, such as bfloat16: then the array holds the bits as integers."""

    def __str__(self) -> str:
        return f"{self.torch_dtype or self.array.dtype}{list(self.array.shape)}"


def collated_batch(values: Mapping[str, Any], samples: Sized) -> Any:
    """Return the batch that a collate_fn has made; an error if it had no good sample."""
    if not len(samples):
        raise SampleError("every sample of a batch is bad: collate_fn has nothing to work on", stage="collate")
    return values[ROOT][0]


def as_leaf(value: Any) -> Leaf | None:
    """Return the value as an array, if torch would make a tensor of it. Torch is used if loaded, but never imported."""
    if isinstance(value, np.ndarray | np.generic):
        return Leaf(np.asarray(value)) if value.dtype in TENSOR_DTYPES else None
    if isinstance(value, bool | int | float):
        kind = bool if isinstance(value, bool) else np.int64 if isinstance(value, int) else np.float64
        return Leaf(np.asarray(value, kind))
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    return _tensor_leaf(torch, value.detach())


def _tensor_leaf(torch: Any, tensor: Any) -> Leaf | None:
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return None
    try:
        return Leaf(tensor.numpy())
    except TypeError:  # numpy does not have this dtype
        bits = {1: torch.uint8, 2: torch.int16}.get(tensor.itemsize)
        return None if bits is None else Leaf(tensor.view(bits).numpy(), str(tensor.dtype).removeprefix("torch."))


def flatten(sample: Any, name: str = ROOT) -> dict[str, Any]:
    """Return the leaves of a sample, by name, from left to right."""
    children = _children(sample)
    if children is None:
        return {name: sample}
    leaves: dict[str, Any] = {}
    for suffix, child in children:
        leaves |= flatten(child, name + suffix)
    return leaves


def unflatten(structure: Any, leaves: Mapping[str, Any], name: str = ROOT) -> Any:
    """Return a copy of the structure with other leaves; tuples become lists, as in torch."""
    children = _children(structure)
    if children is None:
        return leaves[name]
    made = [unflatten(child, leaves, name + suffix) for suffix, child in children]
    if not isinstance(structure, Mapping):  # torch collates strings to a list in a mapping, to a tuple in a sequence
        is_leaf = [_children(child) is None for _, child in children]
        pairs = zip(made, is_leaf, strict=True)
        made = [tuple(value) if leaf and isinstance(value, list) else value for value, leaf in pairs]
    return _with_children(structure, made)


def skeleton(sample: Any) -> Any:
    """Return the structure of a sample without its values."""
    return unflatten(sample, dict.fromkeys(flatten(sample)))


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """Return the elements of a container, each with the suffix of its name; None for a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", value[key]) for key in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{field}", child) for field, child in zip(value._fields, value, strict=True)]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [(f"[{number}]", child) for number, child in enumerate(value)]
    return None


def _with_children(structure: Any, children: list[Any]) -> Any:
    """Return a container of the same type; a plain dict or list if the type does not accept tensors."""
    if isinstance(structure, Mapping):
        return _mapping(structure, dict(zip(structure, children, strict=True)))
    if isinstance(structure, tuple):
        return type(structure)(*children) if hasattr(structure, "_fields") else children
    try:
        if not isinstance(structure, MutableSequence):
            return type(structure)(children)
        clone = copy.copy(structure)
        for number, child in enumerate(children):
            clone[number] = child
        return clone
    except TypeError:
        return children


def _mapping(structure: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    try:
        if not isinstance(structure, MutableMapping):
            return type(structure)(items)  # type: ignore[call-arg]
        clone = copy.copy(structure)
        clone.update(items)
        return clone
    except TypeError:
        return items
