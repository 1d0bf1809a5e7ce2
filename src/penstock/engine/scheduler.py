"""Keeps reads in flight, workers busy and batches in order. One thread decides; nobody else touches the state.

    jobs ─▶ planned (blocks asked for) ─▶ open (a slab taken) ─▶ tasks to workers ─▶ complete, delivered in order

Others speak to it through `post`: readers when a block has come, threads when a task is done, the consumer when a slab
is free again. Processes speak through their pipes. It waits for all of these at once.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from penstock.core.contracts import (
    BAD_SAMPLE,
    NO_BLOCK,
    BatchRequest,
    BlockSource,
    EpochRequest,
    Extras,
    TaskResult,
    no_worker_reads,
)
from penstock.core.hops import HopState
from penstock.core.types import Ids
from penstock.engine.autotune import Autotuner
from penstock.engine.batch import Batch
from penstock.engine.block_cache import BlockCache
from penstock.engine.dispatch import AssignedTask, Dispatch, WorkerSlot
from penstock.engine.ipc import Listener, Wakeup
from penstock.engine.output_queue import LONGEST_WAIT_S, OutputQueue
from penstock.engine.readers import FetchedBlock
from penstock.engine.workers import ProcessWorker
from penstock.errors import WorkerCrash

PLANNED = 64
"""Batches whose blocks are asked for before they have a slab, as far as the arena has room."""
AT_ONCE = 8
"""Of these, planned in one go: one after each step of the loop would find cold code each time. And no more, so that
somebody can begin with the first of them: a pass begins while the loop waits."""


class RequestLookahead:
    """Owned by the conductor's thread."""

    def __init__(self, supply: BlockSource, residency: BlockCache) -> None:
        self._supply = supply
        self._residency = residency
        self._requests: Iterator[BatchRequest] | None = None
        self._planned: deque[tuple[BatchRequest, Ids]] = deque()

    def begin(self, requests: Iterator[BatchRequest] | None) -> None:
        """Of an epoch; what is left of the one before is dropped."""
        self._requests = requests
        self._planned.clear()

    def __len__(self) -> int:
        return len(self._planned)

    @property
    def over(self) -> bool:
        """Whether nothing follows any more."""
        return self._requests is None and not self._planned

    @property
    def enough(self) -> bool:
        """Until there is room for `AT_ONCE` more."""
        return len(self._planned) > PLANNED - AT_ONCE

    @property
    def one_worker(self) -> bool:
        """Whether one worker each makes what was planned last."""
        return bool(self._planned) and self._planned[-1][0].one_worker

    def grows(self, most: int) -> bool:
        """Whether `plan` would do something, with so many at most."""
        return self._requests is not None and not self.enough and self._has_room(most)

    def plan(self, most: int) -> None:
        """Ask for the blocks of the next `AT_ONCE`, in order, as far as that is of use."""
        if self.enough:
            return
        for _ in range(AT_ONCE):
            if self._requests is None or not self._has_room(most):
                return
            request = next(self._requests, None)
            if request is None:
                self._requests = None
                return
            blocks = self._supply.blocks_of(request.samples)
            # All are needed: in the order of their place a disk seeks less. Not by np.unique, whose C++ aborts a
            # program that ends meanwhile, as it may around a daemon thread.
            for block in sorted(set(blocks.tolist())):
                if block != NO_BLOCK:
                    self._residency.want(block)
            self._planned.append((request, blocks))
            self._residency.pump()

    def _has_room(self, most: int) -> bool:
        return len(self._planned) < most and not self._residency.blocked

    def take(self) -> tuple[BatchRequest, Ids]:
        """The next job, and the blocks of its samples."""
        return self._planned.popleft()


log = logging.getLogger("penstock")

PUT_OFF_S = 1.0
"""How long the start of processes waits for the first batch: while they start, they take the cores from it."""
PAUSE_S, LEAST_PAUSE_S = 0.008, 0.0005
"""Where the loop has batches, what happens is dealt with after a pause, with all that happens meanwhile: whenever we
wake, we take the interpreter from the loop, and it is the loop that wakes us when it comes for its next batch."""
OF_SPARE = 8
"""The pause is this part of the time for which the loop has batches."""
AT_FIRST = 1
"""Batches planned, and in the making, until the first one is complete: what is done for later ones delays it."""


class Scheduler:
    """The engine's one deciding thread."""

    def __init__(
        self, supply: BlockSource, residency: BlockCache, dispatch: Dispatch, shelf: OutputQueue, tuner: Autotuner
    ) -> None:
        self.residency = residency
        self.dispatch = dispatch
        self.shelf = shelf
        self.tuner = tuner
        self._free_slabs = list(range(shelf.slabs))
        self._agenda = RequestLookahead(supply, residency)
        self._worker_read_bytes: Callable[[Ids], int] = no_worker_reads
        self._open: deque[Batch] = deque()
        self._stopping = False
        self._put_off: tuple[float, Callable[[], None]] | None = None
        self._events: deque[Callable[[], None]] = deque()
        self._given_back: deque[int] = deque()
        """Slabs that the loop has done with, and we have not seen yet."""
        self._bell: Wakeup | None = Wakeup()
        self._listener = Listener()
        self._thread = threading.Thread(target=self._run, name="penstock-conductor", daemon=True)

    # -- called by others ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let the thread run."""
        self._thread.start()

    def post(self, event: Callable[[], None]) -> None:
        """Have the thread do something soon. From any thread, from finalizers too: takes no lock."""
        self._events.append(event)
        self._ring()

    def put_off(self, deed: Callable[[], None]) -> None:
        """Do it when the first batch is complete, or soon."""
        self._put_off = (time.monotonic() + PUT_OFF_S, deed)

    def begin(self, epoch: EpochRequest) -> None:
        """Start an epoch; what is left of the one before is dropped."""
        self.post(lambda: self._begin(epoch))

    def fetched(self, fetched: FetchedBlock) -> None:
        """A reader has finished a block."""
        self.post(lambda: self._on_fetched(fetched))

    def answered(self, worker: object, answer: TaskResult) -> None:
        """A thread has finished a task."""
        self.post(lambda: self._on_answer(self.dispatch.seat_of(worker), answer))

    def release(self, slab: int) -> None:
        """A delivered slab is no longer looked at. From any thread, from finalizers too: takes no lock."""
        self._given_back.append(slab)
        self.remind()

    def remind(self) -> None:
        """Of slabs that were given back, when they are more than half as many as batches that are ready.

        Waking us costs the loop more than anything else it does for its next batch.
        """
        if 2 * len(self._given_back) > len(self.shelf):
            self._ring()

    def _ring(self) -> None:
        bell = self._bell  # held while it rings, so that it cannot be closed meanwhile
        if bell is not None:
            bell.ring()

    def stop(self, timeout_s: float) -> None:
        """End the thread and the workers."""
        deadline = time.monotonic() + timeout_s
        self._stopping = True
        self.shelf.close()
        self.post(lambda: None)
        try:
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join(timeout_s)
        finally:  # a second Ctrl-C
            self.dispatch.dismiss_all(max(0.0, deadline - time.monotonic()))
            if not self._thread.is_alive():
                self._bell = None

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._happenings()
                self._agenda.plan(self._most(PLANNED))
                self._open_batches()
                self.residency.pump()  # after opening, which asks again for what had to leave the arena
                self.dispatch.give_out(self._open, self.residency, self.shelf.lasts_s())
                self._unstick()
                self._account()
                self._wait()
        except BaseException as error:  # whatever it is, the consumer must hear of it instead of waiting for ever
            self.shelf.fail(error)

    def _happenings(self) -> None:
        while self._events:
            self._events.popleft()()
        while self._given_back:
            self._on_release(self._given_back.popleft())
        for seat in self.dispatch.overdue():
            self._on_death(seat, WorkerCrash(f"{seat.worker.name} was stuck for too long", stage="decode"))

    def _do_put_off(self) -> float:
        """What was put off, if its time has come; returns how long it may still wait."""
        if self._put_off is None:
            return LONGEST_WAIT_S
        due, deed = self._put_off
        left = due - time.monotonic()
        if left > 0 and self.tuner.batches == 0:
            return left
        self._put_off = None
        deed()
        return LONGEST_WAIT_S

    def _wait(self) -> None:
        timeout_s = self._do_put_off()
        only_look = self._agenda.grows(self._most(PLANNED))
        assert self._bell is not None  # not a local: the traceback of a failure would keep it open
        pipes = self.dispatch.pipes()
        heard = self._listener.wait((self._bell.fileno(), *pipes), 0.0 if only_look else timeout_s)
        if heard and not only_look:
            self._let_the_loop_go_first()
        for source in heard:
            if source in pipes:
                self._on_pipe(pipes[source])
            else:
                self._bell.hush()
        if not heard and not only_look:
            self._in_silence(pipes.values())

    def _let_the_loop_go_first(self) -> None:
        pause_s = min(PAUSE_S, self.shelf.lasts_s() / OF_SPARE)
        if pause_s > LEAST_PAUSE_S:
            time.sleep(pause_s)

    def _in_silence(self, seats: Iterable[WorkerSlot]) -> None:
        """An interrupt may have come between a ring and its sound, and a worker may die without a sound."""
        assert self._bell is not None
        self._bell.hush()
        for seat in seats:
            assert isinstance(seat.worker, ProcessWorker)
            try:
                seat.worker.check()
            except WorkerCrash as crash:
                self._on_death(seat, crash)

    def _on_pipe(self, seat: WorkerSlot) -> None:
        assert isinstance(seat.worker, ProcessWorker)
        was_ready = seat.worker.ready
        try:
            answers = seat.worker.receive()
        except WorkerCrash as crash:
            self._on_death(seat, crash)
            return
        if seat.worker.ready and not was_ready:
            self.dispatch.relieve()
        for answer in answers:
            self._on_answer(seat, answer)

    # -- epochs, batches, blocks -----------------------------------------------------------------------------

    def _begin(self, epoch: EpochRequest) -> None:
        first = next(epoch.batches, None)
        batches = itertools.chain([] if first is None else [replace(first, first_of_epoch=True)], epoch.batches)
        self._agenda.begin(None if first is None else batches)
        self._worker_read_bytes = epoch.worker_read_bytes
        for batch in self._open:
            batch.abandoned = True
            if batch.under_way == 0:
                self._free_slabs.append(batch.slab)
        self._open.clear()
        self.dispatch.forget_retries()
        self._free_slabs += [batch.slab for batch in self.shelf.clear(None if first is None else first.number)]
        self.residency.begin(epoch.block_uses)

    def _most(self, usual: int) -> int:
        """Until the first batch is complete, AT_FIRST; batches that one worker each makes do not delay one another."""
        return usual if self._agenda.one_worker or self.tuner.batches else AT_FIRST

    def _open_batches(self) -> None:
        look_ahead = self.tuner.knobs.look_ahead.now
        while self._agenda and self._free_slabs and len(self._open) + len(self.shelf) < self._most(look_ahead):
            request, blocks = self._agenda.take()
            batch = Batch(request, blocks, self._free_slabs.pop())
            needed = set(blocks.tolist()) - {NO_BLOCK}
            missing = [block for block in needed if self.residency.base(block) is None]
            for block in missing:
                self.residency.want(block)
            batch.bytes_here(~np.isin(blocks, missing))
            self._open.append(batch)
            if batch.left == 0:
                self._complete_batch(batch)

    def _on_fetched(self, fetched: FetchedBlock) -> None:
        if fetched.error is not None:
            raise fetched.error
        self.tuner.reads += 1
        self.tuner.bytes_read += fetched.bytes_read
        if self.residency.arrived(fetched):
            for batch in self._open:
                batch.bytes_here(batch.blocks == fetched.block)

    def _unstick(self) -> None:
        """Room is made by force only when nothing is left that could make it: no read, no task, nothing to give out."""
        if not self.residency.blocked or self.residency.loading or self.dispatch.under_way or self.dispatch.retries:
            return
        if self._open and not any(batch.waiting for batch in self._open):
            while self.residency.blocked and self.residency.make_room():
                self.residency.pump()

    def _account(self) -> None:
        """Tell the tuner who works and why the others do not; then let it look."""
        now = time.monotonic()
        if self._agenda.over and not self._open:
            self.tuner.note(now, None, None)
            self.tuner.pause(now)
            return
        reads = self.residency.in_flight
        loading, (busy, able) = min(reads, self.residency.loading), self.dispatch.working
        full = self.residency.blocked or self._agenda.enough
        reading = HopState(loading, reads - loading, "blocked" if full else "starved")
        hungry = busy < able and any(batch.waits_for_bytes for batch in self._open)
        decoding = HopState(busy, able - busy, "starved" if hungry or not self._agenda else "blocked")
        self.tuner.note(now, reading, decoding)
        self.tuner.look(now)

    # -- answers and deaths ----------------------------------------------------------------------------------

    def _on_answer(self, seat: WorkerSlot, answer: TaskResult) -> None:
        given = self.dispatch.finished(seat, answer)
        self._settle(given, answer.extras)

    def _settle(self, given: AssignedTask, extras: Extras) -> None:
        batch = given.batch
        self.residency.unpin_all(batch.blocks[given.slots], done=not batch.abandoned)
        batch.under_way -= len(given.slots)
        if batch.abandoned:
            if batch.under_way == 0:
                self._free_slabs.append(batch.slab)
            return
        batch.extras += extras
        batch.left -= len(given.slots)
        self.tuner.samples += len(given.slots)
        self.tuner.bytes_read += self._worker_read_bytes(batch.request.samples[given.slots])
        if batch.left == 0:
            self._complete_batch(batch)

    def _complete_batch(self, batch: Batch) -> None:
        self._open.remove(batch)
        self.tuner.batches += 1
        self.shelf.put(batch)

    def _on_release(self, slab: int) -> None:
        self.shelf.release(slab)
        self._free_slabs.append(slab)

    def _on_death(self, seat: WorkerSlot, crash: WorkerCrash) -> None:
        """Replace the worker; what it was at is done again, sample by sample, so that a killer gives itself away."""
        log.warning("%s; replacing it", crash.reason)
        for given in self.dispatch.bury(seat, crash):
            if given.strikes >= 2 and (len(given.slots) == 1 or given.batch.request.one_worker):
                what = "batch" if given.batch.request.one_worker else "sample"
                reason = f"decoding this {what} kills the worker ({crash.reason})"
                bad: Extras = [(slot, BAD_SAMPLE, WorkerCrash(reason, stage="decode")) for slot in given.slots.tolist()]
                self._settle(given, bad)
                continue
            self.residency.unpin_all(given.batch.blocks[given.slots], done=False)
            given.batch.under_way -= len(given.slots)
            if given.batch.abandoned:
                if given.batch.under_way == 0:
                    self._free_slabs.append(given.batch.slab)
            else:
                self.dispatch.retry(given)
