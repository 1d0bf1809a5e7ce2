"""The layout of a dataset's samples in a slab, where workers write the batch that `default_collate` would make of them.

It is found from the first sample. Workers write several samples at a time, one leaf after another, which costs about as
much as `default_collate`; the training process then makes tensors over the slab. Only plain containers with plain
tensors, arrays and numbers have a layout. What differs from the first sample is sent as it is, and torch's own
`default_collate` makes the batch, so that every batch, and every error, is torch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate

from penstock.data.batch.shared_pickle import aligned

torch_collate: Any = collate


class DifferentSampleError(Exception):
    """A sample does not have the layout. Never seen by users."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One value of a sample."""

    kind: type
    """Its exact type: torch.Tensor, np.ndarray, a numpy scalar, int, float, bool, str or bytes."""
    shape: tuple[int, ...] = ()
    dtype: Any = None
    """Its own dtype, of torch or of numpy."""
    batch_dtype: torch.dtype | None = None
    """The dtype in a batch; None for text, which is delivered as it is."""

    size: int = 0
    """Bytes per sample."""

    def array(self, area: np.ndarray[Any, Any], start: int, count: int) -> torch.Tensor:
        """Return the tensor of a batch of so many samples."""
        assert self.batch_dtype is not None
        shape = (count, *self.shape)
        if self.size == 0 or count == 0:
            return torch.empty(shape, dtype=self.batch_dtype)
        part = area[start : start + count * self.size]
        return torch.from_numpy(part).view(self.batch_dtype).view(shape)


@dataclass(frozen=True, slots=True)
class _Node:
    """A container of a sample, or a leaf."""

    kind: type | None
    """None for a leaf."""
    children: tuple[Any, ...] = ()
    keys: tuple[Any, ...] = ()
    leaf: int = -1


class SampleLayout:
    """The structure of a sample, and the place of each of its leaves in a slab. Picklable."""

    def __init__(self, root: _Node, leaves: Sequence[_Leaf]) -> None:
        self._root = root
        self.leaves = list(leaves)
        self.text_leaves = [number for number, leaf in enumerate(leaves) if leaf.batch_dtype is None]

    def starts(self, count: int) -> list[int]:
        """Return the offset of each leaf's array in a batch of so many samples, and the size of all, aligned."""
        return list(accumulate((aligned(leaf.size * count) for leaf in self.leaves), initial=0))

    def arrays(self, area: np.ndarray[Any, Any], count: int) -> list[torch.Tensor | None]:
        """Return the tensors of a batch in `area`; None for text."""
        starts = self.starts(count)
        return [
            None if leaf.batch_dtype is None else leaf.array(area, start, count)
            for leaf, start in zip(self.leaves, starts, strict=False)
        ]

    # -- in a worker -----------------------------------------------------------------------------------------------

    def store(self, samples: list[Any], arrays: Sequence[torch.Tensor | None], first: int) -> dict[int, list[Any]]:
        """Write samples to the slots from `first` on, and return the text in them, by leaf.

        Raises DifferentSampleError if one does not have the layout; then nothing that was written counts.
        """
        columns: list[Any] = [()] * len(self.leaves)
        _split(self._root, samples, columns)
        text: dict[int, list[Any]] = {}
        for number, (leaf, values, array) in enumerate(zip(self.leaves, columns, arrays, strict=True)):
            if array is None:
                if any(type(value) is not leaf.kind for value in values):
                    raise DifferentSampleError
                text[number] = list(values)
            else:
                _write(leaf, values, array[first : first + len(values)])
        return text

    # -- in the training process -----------------------------------------------------------------------------------

    def batch(self, arrays: Sequence[torch.Tensor | None], text: Mapping[int, Sequence[Any]]) -> Any:
        """Return the batch, as `default_collate` builds it."""
        return _collated(self._root, arrays, text)

    def sample(self, arrays: Sequence[torch.Tensor | None], text: Mapping[int, Sequence[Any]], slot: int) -> Any:
        """Return a sample as the dataset gave it."""
        values = [
            text[number][slot] if array is None else _original(leaf, array[slot])
            for number, (leaf, array) in enumerate(zip(self.leaves, arrays, strict=True))
        ]
        return _rebuilt(self._root, values)


def collates_as_torch() -> bool:
    """Return whether `default_collate` is torch's own: users may add functions for their types."""
    return all(each.__module__ == torch_collate.__name__ for each in torch_collate.default_collate_fn_map.values())


def find_layout(sample: Any) -> SampleLayout | None:
    """Return the layout of samples like this one; None if they have none."""
    leaves: list[_Leaf] = []
    root = _inspect(sample, leaves)
    return None if root is None or not any(leaf.batch_dtype for leaf in leaves) else SampleLayout(root, leaves)


def _inspect(value: Any, leaves: list[_Leaf]) -> _Node | None:
    kind: Any = type(value)
    if kind is dict:
        children = [_inspect(child, leaves) for child in value.values()]
        return None if None in children else _Node(kind, tuple(children), tuple(value))
    if kind is tuple or kind is list or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        children = [_inspect(child, leaves) for child in value]
        return None if None in children else _Node(kind, tuple(children))
    leaf = _as_leaf(kind, value)
    if leaf is None:
        return None
    leaves.append(leaf)
    return _Node(None, leaf=len(leaves) - 1)


def _as_leaf(kind: type, value: Any) -> _Leaf | None:
    if kind is str or kind is bytes:
        return _Leaf(kind)
    if kind is torch.Tensor:
        plain = value.layout == torch.strided and value.device.type == "cpu" and not value.requires_grad
        if not plain or value.is_quantized or value.is_nested or value.is_conj() or value.is_neg():
            return None
        shape, dtype = tuple(value.shape), value.dtype
    elif kind is np.ndarray or issubclass(kind, np.generic):
        if value.dtype.kind not in "biufc" or not value.dtype.isnative:
            return None
        shape, dtype = value.shape, value.dtype
    elif kind in (int, float, bool):
        shape, dtype = (), None
    else:
        return None
    try:
        batch = torch_collate.default_collate([value])
    except Exception:
        return None  # torch does not support it: its own error comes when a worker makes the batch
    return _Leaf(kind, shape, dtype, batch.dtype, prod(shape) * batch.dtype.itemsize)


def _split(node: _Node, samples: Sequence[Any], columns: list[Any]) -> None:
    """Put the values of each leaf into a column."""
    if node.kind is None:
        columns[node.leaf] = samples
        return
    size = len(node.children)
    kind: Any = node.kind
    for sample in samples:
        if type(sample) is not kind or len(sample) != size:
            raise DifferentSampleError
    if kind is dict:
        keys = list(node.keys)
        for sample in samples:
            if list(sample) != keys:
                raise DifferentSampleError
        parts: Any = ([sample[key] for sample in samples] for key in keys)
    else:
        parts = zip(*samples, strict=True)
    for child, part in zip(node.children, parts, strict=True):
        _split(child, part, columns)


def _write(leaf: _Leaf, values: Sequence[Any], into: torch.Tensor) -> None:
    kind, dtype = leaf.kind, leaf.dtype
    if kind is torch.Tensor:
        for value in values:
            if type(value) is not kind or value.dtype is not dtype:
                raise DifferentSampleError
        if tuple(values[0].shape) != leaf.shape:
            raise DifferentSampleError
        try:
            torch.stack(tuple(values), out=into)  # checks the other shapes
        except RuntimeError as error:  # one is sparse, requires a gradient, or has another shape
            raise DifferentSampleError from error
        return
    for value in values:
        if type(value) is not kind:
            raise DifferentSampleError
    array = into.numpy()
    try:
        if dtype is not None:
            if any(value.dtype != dtype or value.shape != leaf.shape for value in values):
                raise DifferentSampleError
            for slot, value in enumerate(values):
                array[slot] = value
        else:
            array[:] = values
    except (OverflowError, ValueError) as error:
        raise DifferentSampleError from error


def _collated(node: _Node, arrays: Sequence[torch.Tensor | None], text: Mapping[int, Sequence[Any]]) -> Any:
    kind = node.kind
    if kind is None:
        array = arrays[node.leaf]
        return list(text[node.leaf]) if array is None else array
    made = [_collated(child, arrays, text) for child in node.children]
    if kind is dict:
        return dict(zip(node.keys, made, strict=True))
    # in a sequence, torch transposes samples to tuples, and delivers text as such a tuple
    pairs = zip(node.children, made, strict=True)
    made = [tuple(value) if child.kind is None and arrays[child.leaf] is None else value for child, value in pairs]
    return made if kind in (tuple, list) else kind(*made)


def _original(leaf: _Leaf, value: torch.Tensor) -> Any:
    if leaf.kind is torch.Tensor:
        return value
    if leaf.kind is np.ndarray:
        return value.numpy()
    return value.item() if leaf.dtype is None else value.numpy()[()].astype(leaf.dtype)


def _rebuilt(node: _Node, values: Sequence[Any]) -> Any:
    kind = node.kind
    if kind is None:
        return values[node.leaf]
    children = [_rebuilt(child, values) for child in node.children]
    if kind is dict:
        return dict(zip(node.keys, children, strict=True))
    return kind(children) if kind in (tuple, list) else kind(*children)
