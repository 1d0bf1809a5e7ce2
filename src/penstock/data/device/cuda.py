"""Moves batches to a CUDA device: slabs are pinned, copies run on a stream of their own, copied slabs are released.

The training loop's stream waits for a copy on the GPU. The host waits only where the training loop is so far ahead that
nearly all slabs are being copied, and then for the oldest copy alone. Images are transformed behind the copy, on the
same stream. Decoding on the GPU keeps a host thread busy, so batches with images to decode there are sent by one of two
threads: one batch is decoded while the batch before it is placed and transformed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np

from penstock.core.stats import GpuTimes
from penstock.core.types import Bools
from penstock.data.batch.decoded_batch import DecodedBatch
from penstock.data.device.device_stage import SENDER_THREADS, DeviceBatch, DeviceStage
from penstock.data.device.gpu_timing import GpuTimer
from penstock.data.device.transfer import TransferLookahead
from penstock.data.device.transform.draw import DrawnTransforms

log = logging.getLogger("penstock")

FREE_SLABS = 2
"""Slabs that are never being copied: one to be filled, and one that is complete."""
SINGLE = TransferLookahead(1, 1)
IN_PAIRS, PAIR_BYTES = TransferLookahead(1, 2), 16 << 20
"""Used for batches up to this size. Steps on small batches are short, and after each step the host's code for sending a
batch is no longer in the CPU's caches; for the second batch of a pair it is."""
GPU_DECODED = TransferLookahead(2, 2)
"""Used where the GPU decodes: beside a step that keeps it busy, one batch may take twice as long as another."""
POLL_S = 20e-6
"""Seconds between two queries of a copy that is waited for; a tenth of the time that a copy of a few MB takes."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all devices."""


class CudaTransfer:
    """Moves batches to one CUDA device, from the slabs of one engine."""

    def __init__(
        self, device: str, slabs: memoryview, slab_bytes: int, pinned_bytes: int, stage: DeviceStage | None = None
    ) -> None:
        """The first `pinned_bytes` of each slab are arrays, which are copied."""
        import torch

        self._torch = torch
        self._cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._stage = stage or DeviceStage()
        # with its number, because each sender thread has a current device of its own
        self.device = torch.device(device if ":" in device else f"{device}:{torch.cuda.current_device()}")
        with torch.cuda.device(self.device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._slabs = np.frombuffer(slabs, np.uint8)
        self._slab_bytes = slab_bytes
        self._max_copying = max(1, len(slabs) // slab_bytes - FREE_SLABS)
        self._pinned_bytes = pinned_bytes
        self._pinned: set[int] = set()
        self._can_pin = pinned_bytes > 0
        self._copying: deque[tuple[Any, DecodedBatch]] = deque()
        """Batches being copied, each with the event at the end of its copy."""
        self._timer = GpuTimer(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self.lookahead = self._choose_lookahead()
        self._senders = ThreadPoolExecutor(SENDER_THREADS, "penstock-gpu") if self._stage.decoders else None
        self._record_lock = threading.Lock()
        """Held while a copy is recorded, so that `_copying` has the order of the stream."""
        self._in_transfer: WeakSet[DeviceBatch | Future[DeviceBatch]] = WeakSet()
        """Batches that are sent and not received. Used only where both sides decode."""

    def _choose_lookahead(self) -> TransferLookahead:
        if self._max_copying > 2:  # with fewer slabs, batches sent early would wait for one another's slabs
            if self._stage.decoders:
                return GPU_DECODED
            if self._pinned_bytes <= PAIR_BYTES:
                return IN_PAIRS
        return SINGLE

    @property
    def gpu_times(self) -> GpuTimes:
        """How the GPU's time between steps was spent, as far as it has been measured."""
        return self._timer.times()

    def batch_requested(self) -> None:
        """Note that the training loop asks for its next batch: the work that it has launched lies before this."""
        self._timer.batch_requested(self._torch.cuda.current_stream(self.device))

    def reclaim_slabs(self) -> None:
        """Release the slabs that have been copied; if too many have not, wait for the oldest.

        The wait polls instead of synchronising: torch's warning about synchronisations would name the training loop.
        """
        while len(self._copying) >= self._max_copying and not self._copying[0][0].query():
            time.sleep(POLL_S)
        while self._copying and self._copying[0][0].query():
            self._release(self._copying.popleft()[1])
        if self._stage.split_controller is not None:
            self._stage.split_controller.batch_requested()

    def send(self, batch: DecodedBatch) -> DeviceBatch | Future[DeviceBatch]:
        """Start to copy a batch. Its slab is kept until that is done."""
        if self._stage.split_controller is not None:
            self._stage.split_controller.batch_sent(ahead=bool(self._in_transfer))
        self._pin(batch.slab)
        drawn = self._stage.draw(batch)
        sent: DeviceBatch | Future[DeviceBatch]
        if self._senders is not None and batch.encoded_sizes:
            sent = self._senders.submit(self._send, batch, drawn)
        else:
            sent = self._send(batch, drawn)
        if self._stage.split_controller is not None:
            self._in_transfer.add(sent)
        return sent

    def _send(self, batch: DecodedBatch, drawn: Mapping[str, DrawnTransforms]) -> DeviceBatch:
        torch = self._torch
        with torch.cuda.stream(self._stream):  # this selects the stream's device too, in whichever thread this runs
            begun = None
            try:
                buffers = self._stage.allocate(batch, self.device)
                begun = self._timer.mark(self._stream)
                sent = self._stage.to_device(batch, self.device, buffers)
            finally:  # if this fails, some arrays may be being copied
                with self._record_lock:
                    copied = self._timer.mark(self._stream)
                    self._timer.add_copy(begun or copied, copied)
                    self._copying.append((copied, batch))
            self._stage.transform(sent.tensors, drawn)
            return replace(sent, ready=self._stream.record_event() if drawn else copied)

    def receive(self, sent: DeviceBatch | Future[DeviceBatch]) -> DeviceBatch:
        """Return the batch, safe to use on the current stream: the stream waits for it, its memory for the stream."""
        start = time.perf_counter()
        batch = sent.result() if isinstance(sent, Future) else sent
        if self._stage.split_controller is not None:
            self._in_transfer.discard(sent)
            self._stage.split_controller.batch_received(time.perf_counter() - start, lambda: self.gpu_times.stalled_s)
        stream = self._torch.cuda.current_stream(self.device)
        waiting = None
        if not batch.ready.query():
            waiting = self._timer.mark(stream)
            stream.wait_event(batch.ready)
        self._timer.batch_received(stream, waiting)
        for tensor in batch.tensors.values():
            tensor.record_stream(stream)
        return batch

    def flags(self, count: int, flags: Bools | None) -> Any:
        """Return one flag per sample on the GPU; nothing is copied where all are False."""
        if flags is None:
            return self._torch.zeros(count, dtype=self._torch.bool, device=self.device)
        return self._torch.from_numpy(flags).to(self.device)

    def close(self) -> None:
        """Wait for running copies, and unpin the slabs: before their memory is freed."""
        if self._senders is not None:
            self._senders.shutdown()
        while self._copying:
            event, batch = self._copying.popleft()
            event.synchronize()
            self._release(batch)
        for slab in self._pinned:
            self._cuda.cudaHostUnregister(self._address(slab))
        self._pinned.clear()

    @staticmethod
    def _release(batch: DecodedBatch) -> None:
        if batch.on_copied is not None:
            batch.on_copied()

    def _pin(self, slab: int) -> None:
        """Pin a slab at its first use: pinning allocates every page, and takes half a second per GB."""
        if slab in self._pinned or not self._can_pin:
            return
        code = self._cuda.cudaHostRegister(self._address(slab), self._pinned_bytes, _PORTABLE)
        if int(code) == 0:
            self._pinned.add(slab)
        else:
            self._can_pin = False
            log.warning("slabs cannot be pinned (CUDA error %d), so copies to the GPU are slower", int(code))

    def _address(self, slab: int) -> int:
        return int(self._slabs.ctypes.data) + slab * self._slab_bytes
