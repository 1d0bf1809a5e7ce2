"""The batches of one engine of `penstock.DataLoader`: published to the workers, collected from them, and assembled.

`BatchCollector` replaces workers that have died and lets others make their samples again; `PinningThread` copies
complete batches to pinned memory, ahead of the training loop.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import select
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import collate, pin_memory

from penstock.data.batch import shared_pickle
from penstock.data.batch.sample_layout import SampleLayout
from penstock.data.batch.slab_pool import SlabPool
from penstock.engine.shared_memory import SharedMemory
from penstock.engine.work_queue import IRREGULAR, WorkQueue
from penstock.engine.worker_group import MAX_FAILED_STARTS, WorkerGroup
from penstock.runtime.dataloader_worker import DatasetWork, Message, Result, encode_rows, serve
from penstock.runtime.shared_program import SharedProgram

torch_collate: Any = collate
torch_pin_memory: Any = pin_memory
wrapped: Any = ExceptionWrapper
log = logging.getLogger("penstock")

LENT_SLABS = 4
"""Batches that the training loop may hold besides those ahead of it. If it holds more, it gets copies."""
SLAB_BYTES = 1 << 30
"""Addresses reserved for a batch. Memory is taken only for pages that are written."""
SMALL_SLAB_BYTES = 32 << 20
"""The same where the process has a limit on its addresses; larger batches get memory of their own."""
MAX_WAIT_S = 1.0
"""Seconds of one wait at most: then it is checked again whether a worker has died."""
DEATHS_OF_SAMPLE = 2
"""A sample that has killed so many workers is given up."""
IRREGULAR_BATCHES = 4
"""Batches with samples that differ from the first one, after which each batch is made by one worker: then
`default_collate` need not run in the training loop."""


@dataclass(slots=True, eq=False)
class PendingBatch:
    """A batch that was drawn and is not delivered."""

    number: int
    slab: int
    count: int
    position: int
    row_bytes: int
    results: list[tuple[Message, int]] = field(default_factory=list)
    """Messages of workers about it, each with the descriptor of memory of its own, or -1."""
    deaths: dict[int, int] = field(default_factory=dict)
    """Workers that died while they made a sample, by slot."""
    lost: str = ""
    """Why samples of it were given up."""


class EngineWork:
    """The work of one engine's workers, for the watcher. It keeps no worker alive, and any thread may read it."""

    def __init__(self, collector: BatchCollector) -> None:
        self._collector = weakref.ref(collector)
        self._times = (0.0, 0.0)

    def times(self) -> tuple[float, float]:
        """Return the seconds that all workers together have made samples, and have waited for free space.

        They wait because as many batches as may be ahead of the training loop have been made.
        """
        collector = self._collector()
        if collector is not None:
            with suppress(ValueError):  # the queue has been closed meanwhile
                self._times = collector.queue.times()
        return self._times

    @property
    def pids(self) -> list[int | None]:
        """The processes of the workers; empty when they have ended."""
        collector = self._collector()
        return [] if collector is None or collector.stopped else collector.pids()

    @property
    def ahead(self) -> tuple[int, int]:
        """Batches that are drawn and not delivered, and how many of them are known to be complete."""
        collector = self._collector()
        return (0, 0) if collector is None else (len(collector._by_slab), len(collector._complete))


class BatchCollector:
    """The workers and the batches they make. One thread at a time collects: the training loop's, or the pinning one.

    It has no reference to its iteration, so that the iteration's finalizer can stop it.
    """

    def __init__(self, program: DatasetWork, context: Any, max_ahead: int, *, spread: bool) -> None:
        slabs = max_ahead + LENT_SLABS + 1
        self.queue = WorkQueue(program.num_workers, slabs, _slab_bytes())
        if not spread:
            self.queue.set_irregular()
        self._free = deque(range(slabs))
        self._pool = SlabPool(self.queue.slabs, LENT_SLABS + 1, self._free.append)
        self._program = SharedProgram(program)
        self._group = WorkerGroup(self.queue, context, serve, self._program)
        self._by_slab: dict[int, PendingBatch] = {}
        self._complete: dict[int, PendingBatch] = {}
        """Complete batches by number, in the order in which they became complete."""
        self._layout: SampleLayout | None = None
        self._irregular = 0
        self.pinning: PinningThread | None = None
        self.batch_bytes = 0
        """The bytes of the largest batch so far."""
        self._failed_starts = 0
        self._to_replace: set[int] = set()
        self._pid = os.getpid()
        self.stopped = False
        self.work = EngineWork(self)
        try:
            self._group.start()
        except BaseException:
            self.stop()
            raise
        self._watch()

    def _watch(self) -> None:
        self._poll = select.poll()
        self._poll.register(self.queue.fileno(), select.POLLIN)
        for number, sentinel in enumerate(self._group.sentinels()):
            if number not in self._to_replace:
                self._poll.register(sentinel, select.POLLIN)

    @property
    def is_ours(self) -> bool:
        """Whether this process has started the workers, and is not a fork of it."""
        return self._pid == os.getpid()

    def publish(self, number: int, indices: Any, seed: int, epoch: int, position: int) -> PendingBatch:
        """Let the workers make a batch."""
        rows = encode_rows(seed, indices)
        count = len(indices)
        slab = self._free.pop()
        pending = PendingBatch(number, slab, count, position, len(rows))
        self._by_slab[slab] = pending
        one_worker = count == 0 or self.queue.layout_state == IRREGULAR
        self.queue.publish(slab, count, rows, one_worker=one_worker, epoch=epoch, position=position)
        return pending

    # -- collecting ------------------------------------------------------------------------------------------------

    def take(self, number: int | None, timeout_s: float, *, replaces: bool) -> PendingBatch | None:
        """Return batch `number`, or the one that is complete first, when it is there; None after the timeout.

        `replaces`: whether this thread may start processes in the place of those that have died.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._receive()
            if self._complete and (number is None or number in self._complete):
                return self._complete.pop(next(iter(self._complete)) if number is None else number)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            if replaces:
                self.replace_dead()
            ready = self._poll.poll(1000 * min(left_s, MAX_WAIT_S))
            if not ready or any(descriptor != self.queue.fileno() for descriptor, _ in ready):
                self._find_dead()

    def is_held_up(self, number: int) -> bool:
        """Return whether batch `number` is not complete, while half of the batches behind it are."""
        if number in self._complete:
            return False
        self._receive()
        return number not in self._complete and 2 * len(self._complete) >= len(self._by_slab)

    def _receive(self) -> None:
        while (received := self.queue.receive()) is not None:
            data, descriptor = received
            message: Message = pickle.loads(data)  # noqa: S301 (a worker of this program)
            pending = self._by_slab.get(message.slab)
            if pending is None:  # of an epoch that was ended early
                if descriptor >= 0:
                    os.close(descriptor)
                continue
            if message.data is not None or message.buffers:
                pending.results.append((message, descriptor))
            if message.complete:
                self._on_complete(pending)

    def _on_complete(self, pending: PendingBatch) -> None:
        self._complete[pending.number] = pending
        self._failed_starts = 0

    def _find_dead(self) -> None:
        for worker in self._group.dead():
            if worker not in self._to_replace:
                self._receive()  # what it has sent counts
                self._on_death(worker)
        self._watch()

    def _on_death(self, worker: int) -> None:
        cause = self._group.cause_of_death(worker)
        self._to_replace.add(worker)
        lost = self.queue.lost_by(worker)
        self._failed_starts = self._failed_starts + 1 if lost is None else 0
        log.warning("%s; it is replaced, and its samples are made again", cause)
        if lost is None or lost[0] not in self._by_slab:  # it had reported all, and that batch is delivered
            return
        slab, units = lost
        pending = self._by_slab[slab]
        if units:
            self._on_lost(pending, units, cause)
        elif self.queue.is_made_by_one_worker(slab) and not pending.results:
            self.queue.retry(slab, [0])  # it had made the batch and not sent it
        if pending.number not in self._complete and self.queue.is_complete(slab):
            self._on_complete(pending)

    def _on_lost(self, pending: PendingBatch, units: list[int], cause: str) -> None:
        """Let samples of a worker that died be made again, one by one; give up one that kills for the second time."""
        one_worker = self.queue.is_made_by_one_worker(pending.slab)
        # The first that is not made was at work; all others were waiting.
        pending.deaths[units[0]] = pending.deaths.get(units[0], 0) + 1
        if len(units) > 1:
            pending.deaths.update({unit: max(1, pending.deaths.get(unit, 0)) for unit in units})
        given_up = [unit for unit in units if pending.deaths[unit] >= DEATHS_OF_SAMPLE]
        if given_up:
            what = "a batch" if one_worker else f"sample {pending.position + given_up[0]} of the epoch"
            pending.lost = f"{cause}. Making {what} has killed {DEATHS_OF_SAMPLE} workers"
            self.queue.give_up(pending.slab, given_up)
        again = [unit for unit in units if unit not in given_up]
        if again:
            self.queue.retry(pending.slab, again)

    def replace_dead(self) -> None:
        """Start a process in the place of each that has died."""
        if not self._to_replace:
            return
        if self._failed_starts >= MAX_FAILED_STARTS:
            cause = self._group.cause_of_death(next(iter(self._to_replace)))
            raise RuntimeError(
                f"{cause}, before it had made a sample: workers cannot start, their own error is on stderr. If it says "
                "that a process was started while the script was imported, put what starts the training under "
                '`if __name__ == "__main__":`'
            )
        for worker in sorted(self._to_replace):
            self._group.replace(worker)
        self._to_replace.clear()
        self._watch()

    def pids(self) -> list[int | None]:
        """Return the processes of the workers."""
        return [process.pid for process in self._group.processes]

    # -- making the batch ------------------------------------------------------------------------------------------

    def assemble(self, pending: PendingBatch) -> Any:
        """Return the batch; an ExceptionWrapper or a RuntimeError if it cannot be made."""
        self._by_slab.pop(pending.slab, None)
        one_worker = self.queue.is_made_by_one_worker(pending.slab)
        used = self.queue.used_bytes(pending.slab)
        layout = None if one_worker else self._known_layout()
        start = self.queue.data_start(pending.count, pending.row_bytes)
        size = 0 if layout is None else layout.starts(pending.count)[-1]
        if start + size > self.queue.slab_bytes:  # workers have sent the samples as they are
            layout, size = None, 0
        slab_start = pending.slab * self.queue.slab_bytes
        in_use = max(used, min(start + size, self.queue.slab_bytes))
        self.batch_bytes = max(self.batch_bytes, in_use)
        area = self._lend(pending, slab_start, in_use if self._uses_slab(pending, size) else 0)
        results = [self._loaded(message, area, fd) for message, fd in pending.results]
        if pending.lost:
            return RuntimeError(pending.lost)
        errors = {slot: error for result in results for slot, error in (result.errors or {}).items()}
        if errors:
            return errors[min(errors)]
        if any(result.has_batch for result in results):
            return next(result.batch for result in results if result.has_batch)
        return self._spread_batch(pending, results, layout, area[start : start + size])

    def _spread_batch(
        self, pending: PendingBatch, results: list[Result], layout: SampleLayout | None, area: np.ndarray[Any, Any]
    ) -> Any:
        """Return a batch that several workers have made, of what they wrote into the slab and what they have sent."""
        objects = {slot: sample for result in results for slot, sample in (result.objects or {}).items()}
        text: dict[int, list[Any]] = {}
        arrays: list[torch.Tensor | None] = []
        if layout is not None:
            arrays = layout.arrays(area, pending.count)
            text = {leaf: [None] * pending.count for leaf in layout.text_leaves}
            for result in results:
                for first, leaves in (result.text or {}).items():
                    for leaf, values in leaves.items():
                        text[leaf][first : first + len(values)] = values
            if not objects:
                return layout.batch(arrays, text)
        self._irregular += 1
        if self._irregular == IRREGULAR_BATCHES:
            log.info("samples differ from the first one: from now on one worker makes each batch")
            self.queue.set_irregular()
        try:
            samples = [
                objects[slot] if slot in objects else layout.sample(arrays, text, slot)  # type: ignore[union-attr]
                for slot in range(pending.count)
            ]
            return torch_collate.default_collate(samples)
        except Exception:
            return wrapped(where=f"in DataLoader worker process {results[0].worker}")

    def _known_layout(self) -> SampleLayout | None:
        if self._layout is None and (data := self.queue.layout()):
            self._layout = pickle.loads(data)  # noqa: S301 (a worker of this program)
        return self._layout

    def _uses_slab(self, pending: PendingBatch, layout_bytes: int) -> bool:
        return bool(layout_bytes) or any(message.buffers and not message.own_memory for message, _ in pending.results)

    def _lend(self, pending: PendingBatch, start: int, size: int) -> np.ndarray[Any, Any]:
        """Return the first bytes of the slab, as an array that keeps it until no tensor over it is left."""
        if not size:
            self._pool.give_back(pending.slab)
            return np.zeros(0, np.uint8)
        view = np.frombuffer(self.queue.slabs[start : start + size], np.uint8)
        return self._pool.lend(pending.slab, {"slab": view})["slab"]

    def _loaded(self, message: Message, area: np.ndarray[Any, Any], descriptor: int) -> Result:
        if message.own_memory:
            memory = SharedMemory(descriptor, message.own_memory)
            area = np.frombuffer(memory.view, np.uint8)
            memory.close()
        buffers = [area[start : start + size] for start, size in message.buffers]
        data: Any = message.data if message.data is not None else bytes(buffers.pop())
        result: Result = shared_pickle.loads(data, buffers)
        return result

    # -- ending ----------------------------------------------------------------------------------------------------

    def abandon_epoch(self) -> None:
        """Take back all batches, and wait until no worker makes one."""
        self.queue.drop_all()
        while self.queue.is_busy():
            self._poll.poll(20)
            self._receive()
            self._find_dead()
            self.replace_dead()
        self._receive()
        for pending in self._by_slab.values():
            _close_all(pending)
            self._free.append(pending.slab)
        self._by_slab.clear()
        self._complete.clear()

    def stop(self) -> None:
        """End the workers and release everything; batches that the user holds stay valid."""
        if self.stopped or not self.is_ours:
            return
        self.stopped = True
        self.work.times()
        if self.pinning is not None:
            self.pinning.finish()
        try:
            self._group.stop()
        finally:
            self._pool.close()
            for _ in iter(self.queue.receive, None):
                pass
            for pending in self._by_slab.values():
                _close_all(pending)
            self._program.close()
            self.queue.close()


def _close_all(pending: PendingBatch) -> None:
    for _, descriptor in pending.results:
        if descriptor >= 0:
            os.close(descriptor)


def _slab_bytes() -> int:
    """Return the addresses to reserve for a slab."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, OSError):
        return SMALL_SLAB_BYTES
    if limit == resource.RLIM_INFINITY and sys.maxsize > 2**32 and sys.platform == "linux":
        return SLAB_BYTES
    return SMALL_SLAB_BYTES


class PinningThread:
    """Collects batches in their order and copies them to pinned memory, ahead of the training loop."""

    def __init__(self, collector: BatchCollector) -> None:
        self._collector = collector
        self._requests: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        """A number for each batch that was drawn; with in_order=False any batch answers any of them."""
        self._ready: queue.SimpleQueue[tuple[PendingBatch | None, Any]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._device = torch.accelerator.current_device_index()
        self._thread = threading.Thread(target=self._run, name="penstock-pin-memory", daemon=True)
        self._thread.start()

    def request(self, number: int | None) -> None:
        """Let the thread collect one more batch."""
        self._requests.put(number)

    def take(self, timeout_s: float) -> tuple[PendingBatch, Any] | None:
        """Return the next batch; None after the timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._collector.replace_dead()
            try:
                pending, batch = self._ready.get(timeout=max(0.0, min(MAX_WAIT_S, deadline - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= deadline:
                    return None
                continue
            if pending is None:
                raise batch
            return pending, batch

    def finish(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._requests.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            torch.set_num_threads(1)
            torch.accelerator.set_device_index(self._device)
            while not self._stopped.is_set():
                number = self._requests.get()
                pending = None
                while pending is None and not self._stopped.is_set():
                    pending = self._collector.take(
                        number if number is None or number >= 0 else None, 0.1, replaces=False
                    )
                if pending is None:
                    return
                self._ready.put((pending, self._pinned(pending)))
                del pending
        except BaseException as error:  # the training loop would wait forever
            self._ready.put((None, error))

    def _pinned(self, pending: PendingBatch) -> Any:
        batch = self._collector.assemble(pending)
        if isinstance(batch, ExceptionWrapper | RuntimeError):
            return batch
        try:
            return torch_pin_memory.pin_memory(batch)
        except Exception:
            return wrapped(where=f"in pin memory thread for device {self._device}")
