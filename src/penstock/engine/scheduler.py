"""The scheduler: a thread that keeps reads in flight, workers busy and batches in order, and owns their state.

    requests ─▶ planned (blocks requested) ─▶ open (has a slab) ─▶ tasks to workers ─▶ complete, delivered in order

Other threads reach it through `post`: readers when a block has been read, worker threads when a task is done, the
training loop when a slab is free again. Worker processes write to their pipes. It waits for all of these together.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from penstock.core.contracts import (
    BAD_SAMPLE,
    NO_BLOCK,
    BlockSource,
    EpochRequest,
    Extras,
    TaskResult,
    no_worker_reads,
)
from penstock.core.hops import HopState
from penstock.core.types import Ids
from penstock.engine.autotune import Autotuner
from penstock.engine.batch import MAX_PLANNED, Batch, RequestLookahead
from penstock.engine.block_cache import BlockCache
from penstock.engine.dispatch import AssignedTask, Dispatch, WorkerSlot
from penstock.engine.ipc import Poller, Wakeup
from penstock.engine.output_queue import MAX_WAIT_S, OutputQueue
from penstock.engine.readers import FetchedBlock
from penstock.engine.workers import ProcessWorker
from penstock.errors import WorkerCrash

log = logging.getLogger("penstock")

DEFER_S = 1.0
"""Seconds that the start of worker processes waits for the first batch: starting them takes cores away from it."""
MAX_PAUSE_S, MIN_PAUSE_S = 0.008, 0.0005
"""While the training loop has batches, events are handled after a pause, together with those that arrive meanwhile.
Each time this thread runs, it takes the GIL from the training loop, and what wakes it is mostly the training loop that
takes a batch."""
PAUSE_DIVISOR = 8
"""The pause is this part of the time for which the complete batches last."""
FIRST_LIMIT = 1
"""Batches that are planned, and open, until the first one is complete: work for later batches would delay it."""
CRASHES_OF_BAD_SAMPLE = 2
"""A sample that has killed this many workers is bad."""


class Scheduler:
    """The thread that decides what is read and decoded next."""

    def __init__(
        self,
        block_source: BlockSource,
        block_cache: BlockCache,
        dispatch: Dispatch,
        output_queue: OutputQueue,
        autotuner: Autotuner,
    ) -> None:
        self.block_cache = block_cache
        self.dispatch = dispatch
        self.output_queue = output_queue
        self.autotuner = autotuner
        self._free_slabs = list(range(output_queue.slabs))
        self._lookahead = RequestLookahead(block_source, block_cache)
        self._worker_read_bytes: Callable[[Ids], int] = no_worker_reads
        self._open: deque[Batch] = deque()
        """Batches that have a slab and are not complete, in order."""
        self._stopping = False
        self._deferred: tuple[float, Callable[[], None]] | None = None
        """An action for later, and the time at which it is due."""
        self._events: deque[Callable[[], None]] = deque()
        self._released: deque[int] = deque()
        """Slabs that the training loop has released and this thread has not handled yet."""
        self._wakeup: Wakeup | None = Wakeup()
        self._poller = Poller()
        self._thread = threading.Thread(target=self._run, name="penstock-scheduler", daemon=True)

    # -- called by other threads -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, event: Callable[[], None]) -> None:
        """Let the thread call this function soon. Any thread may call it, finalizers too: it takes no lock."""
        self._events.append(event)
        self._wake()

    def defer(self, action: Callable[[], None]) -> None:
        """Let the thread call this function when the first batch is complete, or after DEFER_S."""
        self._deferred = (time.monotonic() + DEFER_S, action)

    def begin(self, epoch: EpochRequest) -> None:
        """Begin an epoch, and drop what is left of the one before."""
        self.post(lambda: self._begin(epoch))

    def block_fetched(self, fetched: FetchedBlock) -> None:
        """Report that a reader has read a block."""
        self.post(lambda: self._on_fetched(fetched))

    def task_done(self, worker: object, result: TaskResult) -> None:
        """Report that a worker thread has done a task."""
        self.post(lambda: self._on_result(self.dispatch.slot_of(worker), result))

    def release(self, slab: int) -> None:
        """Report that a delivered slab is unused. Any thread may call it, finalizers too: it takes no lock."""
        self._released.append(slab)
        self.wake_for_released_slabs()

    def wake_for_released_slabs(self) -> None:
        """Wake the thread if the released slabs are more than half as many as the complete batches.

        Waking it costs the training loop more than anything else that it does to get its next batch.
        """
        if 2 * len(self._released) > len(self.output_queue):
            self._wake()

    def _wake(self) -> None:
        wakeup = self._wakeup  # this reference keeps its descriptors open during the call
        if wakeup is not None:
            wakeup.wake()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread and the workers."""
        deadline = time.monotonic() + timeout_s
        self._stopping = True
        self.output_queue.close()
        self.post(lambda: None)
        try:
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join(timeout_s)
        finally:  # also after a second Ctrl-C
            self.dispatch.stop_all(max(0.0, deadline - time.monotonic()))
            if not self._thread.is_alive():
                self._wakeup = None

    # -- the loop of the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._handle_events()
                self._lookahead.plan(self._limit(MAX_PLANNED))
                self._open_batches()
                self.block_cache.start_reads()  # after opening, which requests blocks again that were evicted
                self.dispatch.assign(self._open, self.block_cache, self.output_queue.buffered_s())
                self._free_arena_if_stuck()
                self._measure()
                self._wait()
        except BaseException as error:  # any error must reach the training loop, which otherwise would wait forever
            self.output_queue.fail(error)

    def _handle_events(self) -> None:
        while self._events:
            self._events.popleft()()
        while self._released:
            self._on_release(self._released.popleft())
        for slot in self.dispatch.overdue():
            self._on_crash(slot, WorkerCrash(f"{slot.worker.name} was stuck for too long", stage="decode"))

    def _run_deferred(self) -> float:
        """Call the deferred function if it is due; return for how many seconds the thread may wait."""
        if self._deferred is None:
            return MAX_WAIT_S
        due, action = self._deferred
        left_s = due - time.monotonic()
        if left_s > 0 and self.autotuner.batches == 0:
            return left_s
        self._deferred = None
        action()
        return MAX_WAIT_S

    def _wait(self) -> None:
        timeout_s = self._run_deferred()
        has_work = self._lookahead.can_plan(self._limit(MAX_PLANNED))
        assert self._wakeup is not None  # not a local variable: the traceback of a failure would keep it open
        pipes = self.dispatch.pipes()
        readable = self._poller.wait((self._wakeup.fileno(), *pipes), 0.0 if has_work else timeout_s)
        if readable and not has_work:
            self._pause_for_training_loop()
        for descriptor in readable:
            if descriptor in pipes:
                self._on_pipe(pipes[descriptor])
            else:
                self._wakeup.clear()
        if not readable and not has_work:
            self._on_timeout(pipes.values())

    def _pause_for_training_loop(self) -> None:
        pause_s = min(MAX_PAUSE_S, self.output_queue.buffered_s() / PAUSE_DIVISOR)
        if pause_s > MIN_PAUSE_S:
            time.sleep(pause_s)

    def _on_timeout(self, slots: Iterable[WorkerSlot]) -> None:
        """Recover a wake-up that was lost to a signal, and find workers that died without closing their pipe."""
        assert self._wakeup is not None
        self._wakeup.clear()
        for slot in slots:
            assert isinstance(slot.worker, ProcessWorker)
            try:
                slot.worker.check()
            except WorkerCrash as crash:
                self._on_crash(slot, crash)

    def _on_pipe(self, slot: WorkerSlot) -> None:
        assert isinstance(slot.worker, ProcessWorker)
        was_ready = slot.worker.ready
        try:
            results = slot.worker.receive()
        except WorkerCrash as crash:
            self._on_crash(slot, crash)
            return
        if slot.worker.ready and not was_ready:
            self.dispatch.retire_stopgap()
        for result in results:
            self._on_result(slot, result)

    # -- epochs, batches, blocks -----------------------------------------------------------------------------------

    def _begin(self, epoch: EpochRequest) -> None:
        first = next(epoch.batches, None)
        batches = itertools.chain([] if first is None else [replace(first, first_of_epoch=True)], epoch.batches)
        self._lookahead.begin(None if first is None else batches)
        self._worker_read_bytes = epoch.worker_read_bytes
        for batch in self._open:
            batch.abandoned = True
            if batch.in_progress == 0:
                self._free_slabs.append(batch.slab)
        self._open.clear()
        self.dispatch.clear_retries()
        not_taken = self.output_queue.clear(None if first is None else first.number)
        self._free_slabs += [batch.slab for batch in not_taken]
        self.block_cache.begin_epoch(epoch.block_uses)

    def _limit(self, usual: int) -> int:
        """Return FIRST_LIMIT until the first batch is complete; batches for one worker each do not delay each other."""
        return usual if self._lookahead.one_worker or self.autotuner.batches else FIRST_LIMIT

    def _open_batches(self) -> None:
        limit = self._limit(self.autotuner.knobs.lookahead.value)
        while self._lookahead and self._free_slabs and len(self._open) + len(self.output_queue) < limit:
            request, blocks = self._lookahead.pop()
            batch = Batch(request, blocks, self._free_slabs.pop())
            needed = set(blocks.tolist()) - {NO_BLOCK}
            missing = [block for block in needed if self.block_cache.start_of(block) is None]
            for block in missing:
                self.block_cache.request(block)
            batch.mark_loaded(~np.isin(blocks, missing))
            self._open.append(batch)
            if batch.remaining == 0:
                self._complete(batch)

    def _on_fetched(self, fetched: FetchedBlock) -> None:
        if fetched.error is not None:
            raise fetched.error
        self.autotuner.reads += 1
        self.autotuner.bytes_read += fetched.bytes_read
        if self.block_cache.add_fetched(fetched):
            for batch in self._open:
                batch.mark_loaded(batch.blocks == fetched.block)

    def _free_arena_if_stuck(self) -> None:
        """Evict blocks if the next one has no space and nothing will free any: no read, no task, nothing to assign."""
        cache, dispatch = self.block_cache, self.dispatch
        if not cache.blocked or cache.loading or dispatch.in_progress or dispatch.retries:
            return
        if self._open and not any(batch.ready_count for batch in self._open):
            while cache.blocked and cache.evict_one():
                cache.start_reads()

    def _measure(self) -> None:
        """Report to the autotuner who is busy and why the others are not, and let it decide on a change."""
        now = time.monotonic()
        if self._lookahead.exhausted and not self._open:
            self.autotuner.update(now, None, None)
            self.autotuner.pause(now)
            return
        max_reads = self.block_cache.max_reads
        loading, (busy, ready) = min(max_reads, self.block_cache.loading), self.dispatch.busy_and_ready
        no_space = self.block_cache.blocked or self._lookahead.is_full
        reading = HopState(loading, max_reads - loading, "blocked" if no_space else "starved")
        starved = busy < ready and any(batch.waits_for_blocks for batch in self._open)
        decoding = HopState(busy, ready - busy, "starved" if starved or not self._lookahead else "blocked")
        self.autotuner.update(now, reading, decoding)
        self.autotuner.tune(now)

    # -- results and crashes ---------------------------------------------------------------------------------------

    def _on_result(self, slot: WorkerSlot, result: TaskResult) -> None:
        task = self.dispatch.finish(slot, result)
        self._finish_slots(task, result.extras)

    def _finish_slots(self, task: AssignedTask, extras: Extras) -> None:
        batch = task.batch
        self.block_cache.unpin(batch.blocks[task.slots], decoded=not batch.abandoned)
        batch.in_progress -= len(task.slots)
        if batch.abandoned:
            if batch.in_progress == 0:
                self._free_slabs.append(batch.slab)
            return
        batch.extras += extras
        batch.remaining -= len(task.slots)
        self.autotuner.samples += len(task.slots)
        self.autotuner.bytes_read += self._worker_read_bytes(batch.request.samples[task.slots])
        if batch.remaining == 0:
            self._complete(batch)

    def _complete(self, batch: Batch) -> None:
        self._open.remove(batch)
        self.autotuner.batches += 1
        self.output_queue.put(batch)

    def _on_release(self, slab: int) -> None:
        self.output_queue.release(slab)
        self._free_slabs.append(slab)

    def _on_crash(self, slot: WorkerSlot, crash: WorkerCrash) -> None:
        """Replace the worker. Its task is done again sample by sample, so that a sample that kills workers is found."""
        log.warning("%s; replacing it", crash.reason)
        for task in self.dispatch.replace_dead(slot, crash):
            one_worker = task.batch.request.one_worker
            if task.crashes >= CRASHES_OF_BAD_SAMPLE and (len(task.slots) == 1 or one_worker):
                what = "batch" if one_worker else "sample"
                reason = f"decoding this {what} kills the worker ({crash.reason})"
                bad: Extras = [
                    (index, BAD_SAMPLE, WorkerCrash(reason, stage="decode")) for index in task.slots.tolist()
                ]
                self._finish_slots(task, bad)
                continue
            self.block_cache.unpin(task.batch.blocks[task.slots], decoded=False)
            task.batch.in_progress -= len(task.slots)
            if task.batch.abandoned:
                if task.batch.in_progress == 0:
                    self._free_slabs.append(task.batch.slab)
            else:
                self.dispatch.retry(task)
