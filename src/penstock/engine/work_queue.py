"""The work queue of `penstock.DataLoader`: batches in shared memory, of which workers take samples by themselves.

`penstock.Loader` has a scheduler's thread, because blocks must be read ahead for its workers. A map-style dataset
needs none: the training loop's thread publishes batches, as many as may be ahead, and each worker that has nothing to
do takes a few samples of the earliest batch that has some left. So no other thread takes the interpreter's lock from
the training loop, one slow worker or one heavy sample delays nothing but itself, and the training process handles one
message per batch.

All state lies in one shared mapping, under a POSIX lock of a memfd: the kernel releases it when its owner is killed.
Every write is ordered so that a worker killed at any point leaves a state from which its samples can be made again.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock.core.slab_layout import round_up_to_page
from penstock.engine.shared_memory import SharedMemory

FREE, TAKEN, DONE = 0, 1, 2
"""States of a unit: a sample, or a whole batch if one worker must make it."""
UNKNOWN, KNOWN, IRREGULAR = range(3)
"""Whether the layout of samples is known: not yet; yes; samples have no common one, so that one worker makes each
batch."""
TARGET_S = 0.016
"""Seconds of samples that a worker takes at a time, at most: no batch waits long for its last worker."""
LEAST_S = 0.001
"""Seconds of samples that it takes at least: taking some costs about 10 microseconds."""
LAYOUT_BYTES = 256 << 10
"""Space for the description of a sample's layout."""
MAX_MESSAGE_BYTES = 32 << 10
"""Larger results are placed in shared memory, because a message must fit into the socket's buffer."""

_HEAD, _TAIL, _STOPPED, _LAYOUT, _LAYOUT_LENGTH, _PUBLISHED, _HEADER = range(7)
_COUNT, _UNITS, _ONE_WORKER, _ONE_BY_ONE, _FREE_FROM, _ROW_BYTES, _PAYLOAD, _EPOCH, _FIRST, _SERIAL, _ENTRY = range(11)
_TAKEN_SLAB, _TAKEN_SERIAL, _TAKEN_FIRST, _TAKEN_COUNT, _IDLE, _BUSY_NS, _WAITED_NS, _WORKER = range(8)


@dataclass(frozen=True, slots=True)
class Taken:
    """Samples that a worker has taken, all of one batch."""

    slab: int
    """The slab of the batch, which identifies it: no other batch uses the slab before this one is released."""
    count: int
    """Samples in the batch."""
    first: int
    """The first sample taken."""
    samples: int
    """How many were taken."""
    one_worker: bool
    """Whether all samples of the batch were taken, to be made into the batch."""
    row_bytes: int
    epoch: int
    position: int
    """The position of the batch's first sample in the epoch."""


class WorkQueue:
    """Batches to be made, shared by the training process, which publishes them, and its workers.

    A slab is a part of a second mapping. It begins with a byte for the state of each unit, then come the rows (what the
    worker must know of each sample), and at `data_start` what workers write.
    """

    def __init__(self, workers: int, slabs: int, slab_bytes: int) -> None:
        self.workers = workers
        self.slab_count = slabs
        self.slab_bytes = slab_bytes
        self._own_thread = threading.Lock()  # the POSIX lock excludes other processes only
        self._entries = _HEADER + _WORKER * workers
        self._order = self._entries + _ENTRY * slabs
        self._layout_start = round_up_to_page(8 * (self._order + slabs))
        self._control = SharedMemory.create(self._layout_start + LAYOUT_BYTES, "work-queue")
        self._memory = SharedMemory.create(slabs * slab_bytes, "slabs")
        self._wake_read, self._wake_write = os.pipe()
        self._alive_read, self._alive_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
        self._receiver, self._sender = socket.socketpair(socket.AF_UNIX, kind)
        self._receiver.setblocking(False)
        self._map()
        _of_this_process.add(self)

    def _forget_training_process(self) -> None:
        """Close what only the training process may hold: otherwise its workers would not notice when it dies."""
        if self._alive_write >= 0:
            os.close(self._alive_write)
            self._alive_write = -1
        self._receiver.close()
        self._own_thread = threading.Lock()  # a thread of the training process may have held it at the fork

    def _map(self) -> None:
        self._words = self._control.view[: self._layout_start].cast("q")
        self.slabs = self._memory.view

    # -- sent to a worker that is not forked -----------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        from multiprocessing.reduction import DupFd

        state = {name: value for name, value in vars(self).items() if name not in _LOCAL}
        state["_control_fd"] = DupFd(self._control.fd), self._control.size
        state["_memory_fd"] = DupFd(self._memory.fd), self._memory.size
        state["_pipes"] = [DupFd(fd) for fd in (self._wake_read, self._wake_write, self._alive_read)]
        state["_sender_fd"] = DupFd(self._sender.fileno())
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        opened = vars(self)
        self._own_thread = threading.Lock()
        self._control, self._memory = (
            SharedMemory(fd.detach(), size) for fd, size in (opened.pop("_control_fd"), opened.pop("_memory_fd"))
        )
        self._wake_read, self._wake_write, self._alive_read = (fd.detach() for fd in opened.pop("_pipes"))
        self._alive_write = -1
        self._sender = socket.socket(fileno=opened.pop("_sender_fd").detach())
        self._map()

    # -- the training process --------------------------------------------------------------------------------------

    def publish(self, slab: int, count: int, rows: bytes, *, one_worker: bool, epoch: int, position: int) -> None:
        """Let workers make a batch of `count` samples, after those that were published before it."""
        units = 1 if one_worker else count  # an empty batch is made by one worker
        start = slab * self.slab_bytes
        first_row = max(1, count)
        payload = self.data_start(count, len(rows))
        words, entry = self._words, self._entry(slab)
        with self._lock():
            self._drop_exhausted()  # the slab may still be listed for its last batch
            self.slabs[start : start + first_row] = bytes(first_row)
            self.slabs[start + first_row : start + first_row + len(rows)] = rows
            words[entry + _COUNT], words[entry + _UNITS], words[entry + _ONE_WORKER] = count, units, one_worker
            words[entry + _ONE_BY_ONE] = words[entry + _FREE_FROM] = 0
            words[entry + _ROW_BYTES], words[entry + _PAYLOAD] = len(rows), payload
            words[entry + _EPOCH], words[entry + _FIRST] = epoch, position
            words[_PUBLISHED] += 1
            words[entry + _SERIAL] = words[_PUBLISHED]
            words[self._order + words[_TAIL] % self.slab_count] = slab
            words[_TAIL] += 1
            self._wake_idle()

    def _drop_exhausted(self) -> None:
        """Keep only those batches in the order of work that have free units."""
        words = self._words
        listed = [words[self._order + place % self.slab_count] for place in range(words[_HEAD], words[_TAIL])]
        left = [slab for slab in listed if bytes(self._states(slab)).find(FREE) >= 0]
        if len(left) < len(listed):
            words[_HEAD] = words[_TAIL] - len(left)
            for place, slab in enumerate(left, words[_HEAD]):
                words[self._order + place % self.slab_count] = slab

    def receive(self) -> tuple[bytes, int] | None:
        """Return the next message of a worker, with the descriptor that came with it or -1; None if there is none."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._receiver, 2 * MAX_MESSAGE_BYTES, 1)
        except BlockingIOError:
            return None
        return message, descriptors[0] if descriptors else -1

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a message."""
        return self._receiver.fileno()

    def lost_by(self, worker: int) -> tuple[int, list[int]] | None:
        """Return the slab and the units that a worker which has died had taken and not finished.

        No units mean that it has finished what it took, and perhaps not reported it. None: it has reported everything.
        """
        with self._lock():
            words, place = self._words, self._place(worker)
            words[place + _IDLE] = 0
            slab, first, count = words[place + _TAKEN_SLAB], words[place + _TAKEN_FIRST], words[place + _TAKEN_COUNT]
            words[place + _TAKEN_COUNT] = 0
            if not count or words[place + _TAKEN_SERIAL] != words[self._entry(slab) + _SERIAL]:
                return None
            states = self._states(slab)
            return slab, [unit for unit in range(first, first + count) if unit < len(states) and states[unit] == TAKEN]

    def retry(self, slab: int, units: list[int]) -> None:
        """Let units of a batch be made again, one by one, before any others."""
        with self._lock():
            words, states, entry = self._words, self._states(slab), self._entry(slab)
            for unit in units:
                states[unit] = FREE
            words[entry + _ONE_BY_ONE] = 1
            words[entry + _FREE_FROM] = min(words[entry + _FREE_FROM], *units)
            if slab not in (
                words[self._order + place % self.slab_count] for place in range(words[_HEAD], words[_TAIL])
            ):
                words[_HEAD] -= 1
                words[self._order + words[_HEAD] % self.slab_count] = slab
            self._wake_idle()

    def give_up(self, slab: int, units: list[int]) -> None:
        """Take units of a batch as made, because they cannot be."""
        with self._lock():
            states = self._states(slab)
            for unit in units:
                states[unit] = DONE

    def is_complete(self, slab: int) -> bool:
        """Return whether all units of a batch are made."""
        with self._lock():
            return _complete(self._states(slab))

    def used_bytes(self, slab: int) -> int:
        """Return how many bytes of the slab are in use, without those of a layout's arrays."""
        return self._words[self._entry(slab) + _PAYLOAD]

    def data_start(self, count: int, row_bytes: int) -> int:
        """Return the offset in its slab at which the data of a batch begin."""
        return round_up_to_page(max(1, count) + row_bytes)

    def is_made_by_one_worker(self, slab: int) -> bool:
        """Return whether one worker makes the whole batch."""
        return bool(self._words[self._entry(slab) + _ONE_WORKER])

    def drop_all(self) -> None:
        """Take back every batch that no worker has begun with."""
        with self._lock():
            self._words[_HEAD] = self._words[_TAIL]

    def is_busy(self) -> bool:
        """Return whether a worker has samples that it has not finished and reported."""
        with self._lock():
            return any(self._words[self._place(worker) + _TAKEN_COUNT] for worker in range(self.workers))

    def stop(self) -> None:
        """Let all workers end after the samples that they have."""
        with suppress(ValueError):  # closed already
            self._words[_STOPPED] = 1
        if self._alive_write >= 0:
            os.close(self._alive_write)
            self._alive_write = -1

    def close(self) -> None:
        """Close all descriptors. Slabs stay mapped while a view of them is alive."""
        self.stop()
        if self._wake_read >= 0:
            self._words.release()
            for descriptor in (self._wake_read, self._wake_write, self._alive_read):
                os.close(descriptor)
            self._wake_read = self._wake_write = self._alive_read = -1
            self._receiver.close()
            self._sender.close()
            self._control.close()
            self._memory.close()

    # -- a worker process ------------------------------------------------------------------------------------------

    def take(self, worker: int, sample_s: float) -> Taken | None:
        """Wait for samples and take some; None when the training process wants no more, or has died.

        `sample_s` is how long this worker has taken for a sample; 0 if that is not known.
        """
        waiter = select.poll()
        waiter.register(self._wake_read, select.POLLIN)
        waiter.register(self._alive_read, select.POLLIN)
        while not self._words[_STOPPED]:
            with self._lock():
                taken = self._take(worker, sample_s)
                if taken is None:
                    self._words[self._place(worker) + _IDLE] = 1
            if taken is not None:
                return taken
            for descriptor, _ in waiter.poll():
                if descriptor == self._alive_read:
                    return None
                with suppress(BlockingIOError):  # another worker has read it
                    os.read(self._wake_read, 1)
        return None

    def _take(self, worker: int, sample_s: float) -> Taken | None:
        words = self._words
        for place in range(words[_HEAD], words[_TAIL]):
            slab = words[self._order + place % self.slab_count]
            entry = self._entry(slab)
            states = self._states(slab)
            first = bytes(states).find(FREE, words[entry + _FREE_FROM])
            if first < 0:
                words[entry + _FREE_FROM] = len(states)
                if place == words[_HEAD]:
                    words[_HEAD] += 1
                continue
            if words[_LAYOUT] == IRREGULAR and not words[entry + _ONE_WORKER] and not any(states):
                words[entry + _ONE_WORKER] = words[entry + _UNITS] = 1
                states = self._states(slab)
            run = _free_run(states, first)
            count = 1 if words[entry + _ONE_BY_ONE] else self._fair_share(run, place, sample_s)
            self._note_taken(worker, slab, first, count)
            states[first : first + count] = bytes([TAKEN]) * count
            words[entry + _FREE_FROM] = first + count
            whole = bool(words[entry + _ONE_WORKER])
            size = words[entry + _COUNT]
            return Taken(
                slab,
                size,
                0 if whole else first,
                size if whole else count,
                whole,
                words[entry + _ROW_BYTES],
                words[entry + _EPOCH],
                words[entry + _FIRST],
            )
        return None

    def _note_taken(self, worker: int, slab: int, first: int, count: int) -> None:
        """Write down what a worker takes, before the units change their state; see `lost_by`."""
        place = self._place(worker)
        self._words[place + _TAKEN_COUNT] = 0
        self._words[place + _TAKEN_SLAB] = slab
        self._words[place + _TAKEN_SERIAL] = self._words[self._entry(slab) + _SERIAL]
        self._words[place + _TAKEN_FIRST] = first
        self._words[place + _TAKEN_COUNT] = count

    def _fair_share(self, free: int, batch: int, sample_s: float) -> int:
        """Return how many of `free` samples a worker takes.

        If each of the others can have a later batch, it takes as many as TARGET_S allows; else they are spread.
        """
        later = self._words[_TAIL] - batch - 1
        share = free if later >= self.workers - 1 else -(-free * (later + 1) // (2 * self.workers))
        if sample_s == 0:
            return max(1, min(free, share, -(-free // (2 * self.workers))))
        return max(1, min(free, int(TARGET_S / sample_s), max(share, int(LEAST_S / sample_s))))

    def rows(self, taken: Taken) -> memoryview:
        """Return the rows of the batch."""
        start = taken.slab * self.slab_bytes + max(1, taken.count)
        return self.slabs[start : start + taken.row_bytes]

    def finish(self, worker: int, taken: Taken) -> bool:
        """Note that the samples are made; return whether the batch is complete now."""
        with self._lock():
            states = self._states(taken.slab)
            if taken.one_worker:
                states[:] = bytes([DONE]) * len(states)
            else:
                states[taken.first : taken.first + taken.samples] = bytes([DONE]) * taken.samples
            return _complete(states)

    def note_times(self, worker: int, busy_ns: int, waited_ns: int) -> None:
        """Add what a worker has spent on samples, and on waiting for some; only this worker writes its sums."""
        place = self._place(worker)
        self._words[place + _BUSY_NS] += busy_ns
        self._words[place + _WAITED_NS] += waited_ns

    def times(self) -> tuple[float, float]:
        """Return the seconds that all workers together have spent on samples, and on waiting for some."""
        places = [self._place(worker) for worker in range(self.workers)]
        busy_ns, waited_ns = (sum(self._words[place + each] for place in places) for each in (_BUSY_NS, _WAITED_NS))
        return busy_ns / 1e9, waited_ns / 1e9

    def note_reported(self, worker: int) -> None:
        """Note that the training process has been sent all that it must know of what the worker took."""
        self._words[self._place(worker) + _TAKEN_COUNT] = 0

    def propose_layout(self, description: bytes) -> None:
        """Note the layout of samples, unless another worker has done so; an empty description if they have none."""
        with self._lock():
            if self._words[_LAYOUT] == UNKNOWN:
                fits = 0 < len(description) <= LAYOUT_BYTES
                if fits:
                    self._control.view[self._layout_start : self._layout_start + len(description)] = description
                    self._words[_LAYOUT_LENGTH] = len(description)
                self._words[_LAYOUT] = KNOWN if fits else IRREGULAR

    def set_irregular(self) -> None:
        """Let one worker make each batch from now on. Batches in work keep the layout, if there is one."""
        with self._lock():
            self._words[_LAYOUT] = IRREGULAR

    @property
    def layout_state(self) -> int:
        """UNKNOWN, KNOWN or IRREGULAR."""
        return self._words[_LAYOUT]

    def layout(self) -> bytes:
        """Return the description of the layout."""
        start = self._layout_start
        return bytes(self._control.view[start : start + self._words[_LAYOUT_LENGTH]])

    def allocate(self, taken: Taken, size: int, least: int) -> int | None:
        """Return the offset of so many bytes of the batch's slab, behind what is in use; None if they do not fit.

        `least` is the first offset behind the arrays of the layout.
        """
        with self._lock():
            entry = self._entry(taken.slab)
            start = max(least, self._words[entry + _PAYLOAD])
            if start + size > self.slab_bytes:
                return None
            self._words[entry + _PAYLOAD] = start + (-(-size // 64) * 64)
            return start

    def send(self, message: bytes, descriptor: int = -1) -> None:
        """Send a message to the training process."""
        if descriptor < 0:
            self._sender.send(message)
        else:
            socket.send_fds(self._sender, [message], [descriptor])

    # -- both ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self._own_thread:
            fcntl.lockf(self._control.fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._control.fd, fcntl.LOCK_UN)

    def _wake_idle(self) -> None:
        """Wake each idle worker: under the lock, so that as many bytes are written as will be read."""
        words = self._words
        places = [self._place(worker) + _IDLE for worker in range(self.workers)]
        idle = sum(words[place] for place in places)
        if idle:
            for place in places:
                words[place] = 0
            with suppress(BlockingIOError):  # the pipe is full, so it is readable anyway
                os.write(self._wake_write, bytes(idle))

    def _place(self, worker: int) -> int:
        return _HEADER + _WORKER * worker

    def _entry(self, slab: int) -> int:
        return self._entries + _ENTRY * slab

    def _states(self, slab: int) -> memoryview:
        start = slab * self.slab_bytes
        return self.slabs[start : start + self._words[self._entry(slab) + _UNITS]]


_LOCAL = {
    "_control", "_memory", "_words", "slabs", "_own_thread", "_receiver", "_sender",
    "_wake_read", "_wake_write", "_alive_read", "_alive_write",
}  # fmt: skip
"""Attributes that a pickle does not hold: mappings and descriptors are sent as duplicates."""


_of_this_process: weakref.WeakSet[WorkQueue] = weakref.WeakSet()
"""The queues that this process publishes batches in."""


def _after_fork() -> None:
    for queue in list(_of_this_process):
        queue._forget_training_process()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_after_fork)


def _complete(states: memoryview) -> bool:
    return bytes(states).count(DONE) == len(states)


def _free_run(states: memoryview, first: int) -> int:
    """Return how many units from `first` on are free."""
    rest = bytes(states[first:])
    return len(rest) - len(rest.lstrip(bytes([FREE])))
