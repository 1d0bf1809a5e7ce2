"""A batch that is delivered over and over, each time with its original content.

A step may take its batch apart (`batch.pop("label")`) or change it in place (`images.div_(255)`). So each delivery has
new containers, and tensors that were changed are restored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import torch


class RepeatedBatch:
    """One batch, with a copy of its tensors from which they are restored."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._tensors: dict[int, _RestorableTensor] = {}
        """The tensors of the batch, by `id`."""
        _map_leaves(batch, self._add_tensor)

    def batch(self) -> Any:
        """Return the batch with its original structure, types and values."""
        return _map_leaves(self._batch, self._restored)

    def _add_tensor(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            self._tensors[id(leaf)] = _RestorableTensor(leaf)
        return leaf

    def _restored(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._tensors[id(leaf)].restored()
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


class _RestorableTensor:
    """One tensor and a copy of its values. It is restored in place, so pinned memory stays pinned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._copy = tensor.clone()
        self._version = tensor._version

    def restored(self) -> torch.Tensor:
        """Return a detached tensor over the same memory.

        The values are copied only if they were changed in place: torch counts such changes in `_version`, also those
        made through a detached tensor.
        """
        if self._tensor._version != self._version:
            with torch.no_grad():
                self._tensor.copy_(self._copy)
            self._version = self._tensor._version
        return self._tensor.detach()


def _map_leaves(thing: Any, replace: Callable[[Any], Any]) -> Any:
    """Return new containers of the same types, with replaced leaves. An object of another type is a leaf."""
    if isinstance(thing, tuple):
        values = [_map_leaves(value, replace) for value in thing]
        return type(thing)(*values) if hasattr(thing, "_fields") else type(thing)(values)
    if type(thing) is list:
        return [_map_leaves(value, replace) for value in thing]
    if isinstance(thing, MutableMapping):
        clone = copy.copy(thing)
        clone.update({name: _map_leaves(thing[name], replace) for name in thing})
        return clone
    return replace(thing)
