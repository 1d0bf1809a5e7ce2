"""The way to a GPU: slabs are pinned, copies run on a stream of their own, and a slab goes back when its copy is done.

The training loop's stream waits for a copy on the card itself. The host waits only where the loop is so far ahead that
nearly all slabs are being copied from, and then for the oldest copy alone. Pictures are finished behind the copy, on
the same stream. Decoding on the card keeps a host thread busy: a batch of which some is decoded there is sent by one
of two threads of ours, so that a batch is decoded while the one before it is placed and finished.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np

from penstock.core.stats import GpuTimes
from penstock.data.device.device_stage import SENDERS, DeviceBatch, DeviceStage, SlabBatch
from penstock.data.device.gpu_timing import GpuTimer
from penstock.data.device.host import TransferLookahead
from penstock.data.device.transform.draw import DrawnTransforms

log = logging.getLogger("penstock")

SPARE_SLABS = 2
"""That are never being copied from: one to be filled, and one that is complete."""
IN_PAIRS, SMALL_BYTES = TransferLookahead(1, 2), 16 << 20
"""Of batches up to this size: steps on small batches are short, the host's code for a batch is cold after each, and
warm for the second."""
DECODED = TransferLookahead(2, 2)
"""Where the card decodes: beside a step that keeps it busy, one batch may take twice as long as another."""
LOOK_AGAIN_S = 20e-6
"""Between two looks at a copy that is waited for; a tenth of what one of a few MB takes."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all devices."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class SentBatch:
    """A batch on the card, and when it has arrived."""

    arrived: DeviceBatch
    ready: Any
    """An event on the copying stream."""


class CudaTransfer:
    """One device, and the slabs that are copied to it."""

    def __init__(
        self, device: str, slabs: memoryview, slab_bytes: int, pinned_bytes: int, arrival: DeviceStage | None = None
    ) -> None:
        """Of each slab the first `pinned_bytes` are arrays, which are copied."""
        import torch

        self._torch = torch
        self._cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._arrival = arrival or DeviceStage()
        # by number: a thread of ours has a current device of its own
        self.device = torch.device(device if ":" in device else f"{device}:{torch.cuda.current_device()}")
        with torch.cuda.device(self.device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._slabs = np.frombuffer(slabs, np.uint8)
        self._slab_bytes = slab_bytes
        self._most_copying = max(1, len(slabs) // slab_bytes - SPARE_SLABS)
        self._pinned_bytes = pinned_bytes
        self._pinned: set[int] = set()
        self._can_pin = pinned_bytes > 0
        self._copying: deque[tuple[Any, SlabBatch]] = deque()
        self._clock = GpuTimer(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self.lead = self._find_lead()
        self._senders = ThreadPoolExecutor(SENDERS, "penstock-card") if self._arrival.pictures else None
        self._noting = threading.Lock()
        """Copies are noted in the order in which the stream comes by them."""
        self._on_way: WeakSet[SentBatch | Future[SentBatch]] = WeakSet()
        """Whose batch the loop has not got yet, where both sides decode."""

    def _find_lead(self) -> TransferLookahead:
        if self._most_copying > 2:  # else they would wait for one another's slabs
            if self._arrival.pictures:
                return DECODED
            if self._pinned_bytes <= SMALL_BYTES:
                return IN_PAIRS
        return TransferLookahead(1, 1)

    @property
    def times(self) -> GpuTimes:
        """Where the card's time went, as far as it has come."""
        return self._clock.times()

    def asked(self) -> None:
        """The loop wants the next batch: what it has given the card to do lies before this."""
        self._clock.asked(self._torch.cuda.current_stream(self.device))

    def make_room(self) -> None:
        """Let go of the slabs that have been copied; if too many have not, wait for the oldest.

        By looking again, not by synchronising: torch's own check for synchronisations would blame the training loop.
        """
        while len(self._copying) >= self._most_copying and not self._copying[0][0].query():
            time.sleep(LOOK_AGAIN_S)
        while self._copying and self._copying[0][0].query():
            self._let_go(self._copying.popleft()[1])
        if self._arrival.balance is not None:
            self._arrival.balance.batch_requested()

    def send(self, shipment: SlabBatch) -> SentBatch | Future[SentBatch]:
        """Begin to copy. The slab is kept until that is done."""
        if self._arrival.balance is not None:
            self._arrival.balance.batch_sent(ahead=bool(self._on_way))
        self._pin(shipment.slab)
        drawn = self._arrival.draw_transforms(shipment)
        sent: SentBatch | Future[SentBatch]
        if self._senders is not None and shipment.encoded:
            sent = self._senders.submit(self._send, shipment, drawn)
        else:
            sent = self._send(shipment, drawn)
        if self._arrival.balance is not None:
            self._on_way.add(sent)
        return sent

    def _send(self, shipment: SlabBatch, drawn: Mapping[str, DrawnTransforms]) -> SentBatch:
        torch = self._torch
        with torch.cuda.stream(self._stream):  # and its device, in whatever thread this is
            begun = None
            try:
                rooms = self._arrival.make_room(shipment, self.device)
                begun = self._clock.mark(self._stream)
                arrived = self._arrival.unpack(shipment, self.device, rooms)
            finally:  # of a batch that fails, some may be on its way
                with self._noting:
                    copied = self._clock.mark(self._stream)
                    self._clock.copied(begun or copied, copied)
                    self._copying.append((copied, shipment))
            self._arrival.finish(arrived.tensors, drawn)
            return SentBatch(arrived, self._stream.record_event() if drawn else copied)

    def receive(self, sent: SentBatch | Future[SentBatch]) -> DeviceBatch:
        """The tensors, safe to use on the current stream: it waits for them, and their memory waits for it."""
        start = time.perf_counter()
        batch = sent.result() if isinstance(sent, Future) else sent
        if self._arrival.balance is not None:
            self._on_way.discard(sent)
            self._arrival.balance.batch_received(time.perf_counter() - start, lambda: self.times.stalled_s)
        stream = self._torch.cuda.current_stream(self.device)
        before = None
        if not batch.ready.query():
            before = self._clock.mark(stream)
            stream.wait_event(batch.ready)
        self._clock.given(stream, before)
        for tensor in batch.arrived.tensors.values():
            tensor.record_stream(stream)
        return batch.arrived

    def close(self) -> None:
        """Wait for copies under way, and unpin: before the slabs' memory goes."""
        if self._senders is not None:
            self._senders.shutdown()
        while self._copying:
            event, shipment = self._copying.popleft()
            event.synchronize()
            self._let_go(shipment)
        for slab in self._pinned:
            self._cuda.cudaHostUnregister(self._address(slab))
        self._pinned.clear()

    @staticmethod
    def _let_go(shipment: SlabBatch) -> None:
        if shipment.copied is not None:
            shipment.copied()

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
