"""Batches at the same addresses every time, for CUDA graphs and whoever else remembers where a tensor was."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("penstock")


class StaticBuffers:
    """One tensor for each name, made for the first batch; a batch is copied into them, and is gone with the next.

    The copy runs on the stream that is current when the batch is asked for, behind the step before it: so nothing is
    overwritten that is still read there. A batch with fewer samples fills the first of them.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def hold(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """The same numbers, where they always are."""
        return {name: self._copied(name, tensor) for name, tensor in tensors.items()}

    def _copied(self, name: str, tensor: Any) -> Any:
        kept = self._kept.get(name)
        if kept is None or not _fits(tensor, kept):
            if kept is not None:
                log.warning("%s: a batch is larger than all before it, so its address is another from here on", name)
            import torch

            kept = self._kept[name] = torch.empty_like(tensor)
        place = kept[: len(tensor)] if tensor.dim() else kept
        return place.copy_(tensor, non_blocking=True)


def _fits(tensor: Any, kept: Any) -> bool:
    alike: bool = tensor.dtype == kept.dtype and tensor.device == kept.device and tensor.shape[1:] == kept.shape[1:]
    return alike and (not tensor.dim() or len(tensor) <= len(kept))
