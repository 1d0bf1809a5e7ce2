"""How a decoded batch reaches the training loop: on the CPU it stays in its slab, else it is copied to the device."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from penstock.core.stats import GpuTimes
from penstock.core.types import Bools
from penstock.data.batch.decoded_batch import DecodedBatch
from penstock.data.device.device_stage import DeviceBatch, DeviceStage
from penstock.errors import SettingError


@dataclass(frozen=True, slots=True)
class TransferLookahead:
    """When to send batches to the device early.

    When fewer than `min_batches` are in transfer, complete batches are sent until there are `max_batches`.
    """

    min_batches: int
    max_batches: int


NO_LOOKAHEAD = TransferLookahead(0, 0)
"""Used for devices where sending batches early gains nothing."""


class Transfer(Protocol):
    """Moves decoded batches to the device of the training loop."""

    @property
    def lookahead(self) -> TransferLookahead:
        """How many batches are sent before the one ahead of them is delivered.

        If any are, `send` copies their arrays: nothing else uses the slab, and `DecodedBatch.on_copied` is called.
        """
        ...

    @property
    def gpu_times(self) -> GpuTimes | None:
        """How the GPU's time between steps was spent; None without a GPU."""
        ...

    def batch_requested(self) -> None:
        """Note that the training loop asks for its next batch. Called before anything is waited for."""
        ...

    def reclaim_slabs(self) -> None:
        """Release slabs that have been copied. Called before the engine is asked for a batch."""
        ...

    def send(self, batch: DecodedBatch) -> Any:
        """Start to move a batch; the result is for `receive`."""
        ...

    def receive(self, sent: Any) -> DeviceBatch:
        """Return a batch that was sent, ready for the training loop."""
        ...

    def flags(self, count: int, flags: Bools | None) -> Any:
        """Return one flag per sample on the device; None are all False."""
        ...

    def close(self) -> None:
        """Finish all copies, before the slabs are freed."""
        ...


class HostTransfer:
    """Batches stay in their slabs, as arrays or tensors. For a device other than CUDA they are copied when received."""

    lookahead = NO_LOOKAHEAD
    gpu_times = None

    def __init__(self, device: str, stage: DeviceStage | None = None) -> None:
        self._device = device
        self._stage = stage or DeviceStage()

    def batch_requested(self) -> None:
        """Do nothing: no GPU is timed."""

    def reclaim_slabs(self) -> None:
        """Do nothing: a slab is returned when the arrays of its batch are garbage."""

    def send(self, batch: DecodedBatch) -> DecodedBatch:
        """Return the batch as it is."""
        return batch

    def receive(self, sent: DecodedBatch) -> DeviceBatch:
        """Return the batch on its device; on the CPU over the same memory, apart from transformed images."""
        if self._device == "numpy":
            return DeviceBatch(dict(sent.arrays), sent.lists, sent.samples, padding=sent.padding)
        batch = self._stage.to_device(sent, _torch().device(self._device))
        self._stage.transform(batch.tensors, self._stage.draw(sent))
        return batch

    def flags(self, count: int, flags: Bools | None) -> Any:
        """Return one flag per sample as an array or a tensor."""
        found = np.zeros(count, bool) if flags is None else flags
        return found if self._device == "numpy" else _torch().from_numpy(found).to(self._device)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def choose_transfer(
    device: str, slabs: memoryview, slab_bytes: int, pinned_bytes: int, stage: DeviceStage | None = None
) -> Transfer:
    """Return the transfer to a device. Each slab has `slab_bytes`, of which the first `pinned_bytes` hold arrays."""
    if not _is_cuda(device):
        return HostTransfer(device, stage)
    from penstock.data.device.cuda import CudaTransfer

    return CudaTransfer(device, slabs, slab_bytes, pinned_bytes, stage)


def check_device(device: str) -> None:
    """Raise a SettingError if a CUDA device does not exist. Called before anything is started."""
    if not _is_cuda(device):
        return
    torch = _torch()
    number = torch.device(device).index or 0
    if number >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "no CUDA device"
        raise SettingError(
            f"there is no {device}: torch sees {found}", advice='Use device="cpu", or see `penstock doctor`'
        )


def _is_cuda(device: str) -> bool:
    return device.partition(":")[0] == "cuda"


def _torch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise SettingError("torch is not installed", advice='Install it, or use device="numpy"') from error
    return torch
