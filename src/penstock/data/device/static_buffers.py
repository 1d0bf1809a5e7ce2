"""Delivers every batch in the same tensors, for CUDA graphs and other code that keeps a tensor's address."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("penstock")


class StaticBuffers:
    """One tensor for each name, made for the first batch. Each batch is copied into them, and replaces the one before.

    The copy runs on the stream that is current when the batch is requested, behind the step before it, so nothing is
    overwritten that is still read there. A batch with fewer samples fills the first part of each tensor.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}

    def store(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Copy a batch into the buffers, and return these."""
        return {name: self._stored(name, tensor) for name, tensor in tensors.items()}

    def _stored(self, name: str, tensor: Any) -> Any:
        buffer = self._buffers.get(name)
        if buffer is None or not _fits(tensor, buffer):
            if buffer is not None:
                log.warning("%s: a batch is larger than all before it, so its address changes now", name)
            import torch

            buffer = self._buffers[name] = torch.empty_like(tensor)
        used = buffer[: len(tensor)] if tensor.dim() else buffer
        return used.copy_(tensor, non_blocking=True)


def _fits(tensor: Any, buffer: Any) -> bool:
    alike: bool = (
        tensor.dtype == buffer.dtype and tensor.device == buffer.device and tensor.shape[1:] == buffer.shape[1:]
    )
    return alike and (not tensor.dim() or len(tensor) <= len(buffer))
