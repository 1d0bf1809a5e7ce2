"""A batch that is given over and over, each time as it was the first time.

Steps take batches apart (`batch.pop("label")`) and change them in place (`pictures.div_(255)`). Done again and again
that would end in an error or in other numbers: so containers are made anew, and what was changed is put back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import torch


class RepeatedBatch:
    """Keeps one batch, and a copy of its tensors."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._kept: dict[int, _KeptTensor] = {}
        _map_leaves(batch, self._keep)

    def batch(self) -> Any:
        """Of the same kind and with the same numbers, whatever was done to the last one."""
        return _map_leaves(self._batch, self._restored)

    def _keep(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            self._kept[id(leaf)] = _KeptTensor(leaf)
        return leaf

    def _restored(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._kept[id(leaf)].restored()
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


class _KeptTensor:
    """One tensor. It stays where it lies: pinned memory stays pinned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._copy = tensor.clone()
        self._version = tensor._version

    def restored(self) -> torch.Tensor:
        """Torch counts changes in place, also those made to the detached tensors that are given away."""
        if self._tensor._version != self._version:
            with torch.no_grad():
                self._tensor.copy_(self._copy)
            self._version = self._tensor._version
        return self._tensor.detach()


def _map_leaves(thing: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same structure, of the same kinds, with other leaves. Objects of other kinds are leaves."""
    if isinstance(thing, tuple):
        values = [_map_leaves(value, leaf) for value in thing]
        return type(thing)(*values) if hasattr(thing, "_fields") else type(thing)(values)
    if type(thing) is list:
        return [_map_leaves(value, leaf) for value in thing]
    if isinstance(thing, MutableMapping):
        clone = copy.copy(thing)
        clone.update({name: _map_leaves(thing[name], leaf) for name in thing})
        return clone
    return leaf(thing)
