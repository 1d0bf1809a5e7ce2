"""From a finished slab to what the training loop gets: tensors over the same memory, or on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.stats import GpuTimes
from penstock.data.device.device_stage import DeviceBatch, DeviceStage, SlabBatch
from penstock.errors import SettingError

Key = TypeVar("Key")


class _SlabArray:
    """One array of a slab, as the owner of every view of it.

    numpy lets a view of a view forget the one between, but never an owner that is not an array: so whatever the user
    makes of a delivered array or tensor, this object lives exactly as long as somebody can look at the memory.
    """

    def __init__(self, array: NDArray[Any], lease: _Lease) -> None:
        self.__array_interface__ = array.__array_interface__
        self.lease = lease


class _Lease:
    """Held by all windows of a batch. `memory` is a view of its own, so the mapping cannot be closed under it."""

    def __init__(self, slabs: memoryview) -> None:
        self.memory = memoryview(slabs)


def lease(
    arrays: Mapping[Key, NDArray[Any]], slabs: memoryview, give_back: Callable[[], None]
) -> dict[Key, NDArray[Any]]:
    """The same arrays; `give_back` is called once, when nobody can see any of them any more."""
    held = _Lease(slabs)
    weakref.finalize(held, give_back).atexit = False
    return {name: np.asarray(_SlabArray(array, held)) for name, array in arrays.items()}


def copy(arrays: Mapping[Key, NDArray[Any]]) -> dict[Key, NDArray[Any]]:
    """The same arrays in memory of their own."""
    return {name: array.copy() for name, array in arrays.items()}


@dataclass(frozen=True, slots=True)
class TransferLookahead:
    """When fewer than `least` batches are on their way to the device, others set off until there are `most`."""

    least: int
    most: int


NO_LOOKAHEAD = TransferLookahead(0, 0)
"""Where it gains nothing."""


class Transfer(Protocol):
    """How a finished batch comes to the training loop."""

    @property
    def lead(self) -> TransferLookahead:
        """How many batches set off before the one ahead of them is handed over.

        If any do, their arrays are copied on the way: nobody else sees the slab, and `SlabBatch.copied` is called.
        """
        ...

    @property
    def times(self) -> GpuTimes | None:
        """Where the card's time went, if there is one."""
        ...

    def asked(self) -> None:
        """Called when the loop wants the next batch, before anything is waited for."""
        ...

    def make_room(self) -> None:
        """Called before a batch is asked for: let go of slabs that are done with."""
        ...

    def send(self, shipment: SlabBatch) -> Any:
        """Set off."""
        ...

    def receive(self, sent: Any) -> DeviceBatch:
        """What was sent, where the training loop can use it."""
        ...

    def close(self) -> None:
        """Before the slabs go."""
        ...


class HostTransfer:
    """They stay where they are, as arrays or as tensors; a device that has no way of its own gets plain copies."""

    lead = NO_LOOKAHEAD
    times = None

    def __init__(self, device: str, arrival: DeviceStage | None = None) -> None:
        self._device = device
        self._arrival = arrival or DeviceStage()

    def asked(self) -> None:
        """Nobody keeps the time."""

    def make_room(self) -> None:
        """Slabs come back by themselves, when nobody looks at them any more."""

    def send(self, shipment: SlabBatch) -> SlabBatch:
        """Nothing to do yet."""
        return shipment

    def receive(self, sent: SlabBatch) -> DeviceBatch:
        """As the device has them; on the CPU over the same memory, but for what is finished."""
        if self._device == "numpy":
            return DeviceBatch(dict(sent.arrays))
        arrived = self._arrival.unpack(sent, _torch().device(self._device))
        self._arrival.finish(arrived.tensors, self._arrival.draw_transforms(sent))
        return arrived

    def close(self) -> None:
        """Nothing is held."""


def choose_transfer(
    device: str, slabs: memoryview, slab_bytes: int, pinned_bytes: int, arrival: DeviceStage | None = None
) -> Transfer:
    """Of `slabs` each is `slab_bytes` long, and holds arrays in its first `pinned_bytes`."""
    if not _is_cuda(device):
        return HostTransfer(device, arrival)
    from penstock.data.device.cuda import CudaTransfer

    return CudaTransfer(device, slabs, slab_bytes, pinned_bytes, arrival)


def check_device(device: str) -> None:
    """That it is there: before anything is started."""
    if not _is_cuda(device):
        return
    torch = _torch()
    number = torch.device(device).index or 0
    if number >= torch.cuda.device_count():
        seen = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "no CUDA device"
        raise SettingError(
            f"there is no {device}: torch sees {seen}", advice='Use device="cpu", or see `penstock doctor`'
        )


def _is_cuda(device: str) -> bool:
    return device.partition(":")[0] == "cuda"


def _torch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise SettingError("torch is not installed", advice='Install it, or use device="numpy"') from error
    return torch
