"""The way to a GPU: slabs are pinned, copies run on a stream of their own, and a slab goes back when its copy is done.

The training loop's stream waits for a copy on the card itself. The host waits only where the loop is so far ahead that
nearly all slabs are being copied from, and then for the oldest copy alone.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger("penstock")

SPARE_SLABS = 2
"""That are never being copied from: one to be filled, and one that is complete."""
LOOK_AGAIN_S = 20e-6
"""Between two looks at a copy that is waited for; a tenth of what one of a few MB takes."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all devices."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Tensors on the card, and when they have arrived."""

    tensors: dict[str, Any]
    arrived: Any
    """An event on the copying stream."""


class Card:
    """One device, and the slabs that are copied to it."""

    def __init__(self, device: str, slabs: memoryview, slab_bytes: int, pinned_bytes: int) -> None:
        """Of each slab the first `pinned_bytes` are arrays, which are copied."""
        import torch

        self._torch = torch
        self._cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self.device = torch.device(device)
        with torch.cuda.device(self.device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._slabs = np.frombuffer(slabs, np.uint8)
        self._slab_bytes = slab_bytes
        self._most_copying = max(1, len(slabs) // slab_bytes - SPARE_SLABS)
        self._pinned_bytes = pinned_bytes
        self._pinned: set[int] = set()
        self._can_pin = pinned_bytes > 0
        self._copying: deque[tuple[Any, Mapping[str, NDArray[Any]]]] = deque()
        """With the arrays, which hold their slab."""

    def make_room(self) -> None:
        """Let go of the slabs that have been copied; if too many have not, wait for the oldest.

        By looking again, not by synchronising: torch's own check for synchronisations would blame the training loop.
        """
        while len(self._copying) >= self._most_copying and not self._copying[0][0].query():
            time.sleep(LOOK_AGAIN_S)
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()

    def send(self, arrays: Mapping[str, NDArray[Any]], slab: int) -> Sent:
        """Begin to copy. The arrays are kept until they have been copied, whoever else lets them go."""
        torch = self._torch
        self._pin(slab)
        with torch.cuda.stream(self._stream):
            tensors = {
                name: torch.from_numpy(array).to(self.device, non_blocking=True) for name, array in arrays.items()
            }
            arrived = self._stream.record_event()
        self._copying.append((arrived, arrays))
        return Sent(tensors, arrived)

    def receive(self, sent: Sent) -> dict[str, Any]:
        """The tensors, safe to use on the current stream: it waits for them, and their memory waits for it."""
        stream = self._torch.cuda.current_stream(self.device)
        stream.wait_event(sent.arrived)
        for tensor in sent.tensors.values():
            tensor.record_stream(stream)
        return sent.tensors

    def close(self) -> None:
        """Wait for copies under way, and unpin: before the slabs' memory goes."""
        while self._copying:
            self._copying.popleft()[0].synchronize()
        for slab in self._pinned:
            self._cuda.cudaHostUnregister(self._address(slab))
        self._pinned.clear()

    def _pin(self, slab: int) -> None:
        """At its first use: pinning makes every page, and takes half a second per GB."""
        if slab in self._pinned or not self._can_pin:
            return
        code = self._cuda.cudaHostRegister(self._address(slab), self._pinned_bytes, _PORTABLE)
        if int(code) == 0:
            self._pinned.add(slab)
        else:
            self._can_pin = False
            log.warning("slabs cannot be pinned (CUDA error %d): copies take the slower way", int(code))

    def _address(self, slab: int) -> int:
        return int(self._slabs.ctypes.data) + slab * self._slab_bytes
