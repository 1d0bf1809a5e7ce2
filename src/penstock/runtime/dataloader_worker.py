"""The program of a worker process of `penstock.DataLoader`: it takes samples from the work queue and makes them.

Each message to the training process is a small pickle. Tensors are in the batch's slab: where samples have a layout,
at their place in the batch; else behind the rows, as the buffers of a pickle. What does not fit there gets memory of
its own.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data
import torch.utils.data._utils.worker
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import collate, worker

from penstock.data.batch import shared_pickle
from penstock.data.batch.sample_layout import DifferentSampleError, SampleLayout, find_layout
from penstock.data.decode.dataset_program import has_getitems
from penstock.data.decode.rng import seed_global_rngs
from penstock.engine.shared_memory import SharedMemory
from penstock.engine.work_queue import MAX_MESSAGE_BYTES, UNKNOWN, Taken, WorkQueue
from penstock.runtime.shared_program import SharedProgram

torch_collate: Any = collate
torch_worker: Any = worker
wrapped: Any = ExceptionWrapper
MAX_NEW_SHARE = 0.5
"""How much of its running mean a worker's time per sample may change by one observation."""


@dataclass(frozen=True)
class DatasetWork:
    """The dataset and settings that all workers of an iteration must know."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any]
    worker_init_fn: Callable[[int], None] | None
    base_seed: int
    num_workers: int


@dataclass(slots=True)
class Result:
    """All that a worker has made of samples that it took, besides what it has written into the slab."""

    worker: int
    slab: int
    first: int
    samples: int
    batch: Any = None
    """The whole batch, where one worker makes it."""
    has_batch: bool = False
    text: Any = None
    """Text of the samples, by leaf."""
    objects: Any = None
    """Samples without the layout, by slot."""
    errors: Any = None
    """An ExceptionWrapper for each sample that failed, by slot; for a whole batch, by slot 0."""

    @property
    def is_empty(self) -> bool:
        """Whether the slab holds everything."""
        return not (self.has_batch or self.text or self.objects or self.errors)


@dataclass(slots=True)
class Message:
    """A result on its path to the training process."""

    slab: int
    complete: bool
    """Whether all of the batch is made."""
    data: bytes | None = None
    """The pickle of a Result; None if it is in the memory with the buffers."""
    buffers: tuple[tuple[int, int], ...] = ()
    """Offset and size of each buffer, in the slab or in memory of its own; the last may be the pickle."""
    own_memory: int = 0
    """The size of that memory; 0 if the buffers are in the slab."""


def serve(queue: WorkQueue, number: int, program: SharedProgram) -> None:
    """Make samples until the queue ends."""
    _Worker(queue, number, program.value).run()


class _Worker:
    def __init__(self, queue: WorkQueue, number: int, program: DatasetWork) -> None:
        self._queue = queue
        self._number = number
        self._dataset = program.dataset
        self._base_seed = program.base_seed
        self._default_collate = program.collate_fn is torch_collate.default_collate
        self._collate = program.collate_fn
        self._layout: SampleLayout | None = None
        self._slabs = np.frombuffer(queue.slabs, np.uint8)
        self._sample_s = 0.0
        self._together = has_getitems(self._dataset)
        self._torch_seed: bytes | None = None
        """The torch seed that worker_init_fn has set, as it is stored in the state of the generator."""
        self._init_error = self._init(program)

    def _init(self, program: DatasetWork) -> ExceptionWrapper | None:
        """Set up the process as torch does; return what went wrong in worker_init_fn."""
        torch_worker.signal_handling._set_worker_signal_handlers()
        torch.set_num_threads(1)
        seed = program.base_seed + self._number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_worker._generate_state(program.base_seed, self._number))
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=self._number, num_workers=program.num_workers, seed=seed, dataset=self._dataset
        )
        if torch_collate.default_collate_fn_map.get(torch.Tensor) is torch_collate.collate_tensor_fn:
            torch_collate.default_collate_fn_map[torch.Tensor] = _stack
        try:
            if program.worker_init_fn is not None:
                program.worker_init_fn(self._number)
                if torch.initial_seed() != seed:
                    self._torch_seed = torch.initial_seed().to_bytes(8, "little")
        except Exception:
            return self._error()
        return None

    def run(self) -> None:
        reported_ns = time.perf_counter_ns()
        while True:
            taken = self._queue.take(self._number, self._sample_s)
            if taken is None:
                return
            start_ns = time.perf_counter_ns()
            result = self._make(taken)
            sample_s = (time.perf_counter_ns() - start_ns) / 1e9 / max(1, taken.samples)
            self._sample_s += (sample_s - self._sample_s) * (1.0 if self._sample_s == 0 else MAX_NEW_SHARE)
            self._report(taken, result)
            self._queue.note_reported(self._number)
            del result
            waited_ns, reported_ns = start_ns - reported_ns, time.perf_counter_ns()
            self._queue.note_times(self._number, reported_ns - start_ns, waited_ns)

    # -- making ----------------------------------------------------------------------------------------------------

    def _make(self, taken: Taken) -> Result:
        result = Result(self._number, taken.slab, taken.first, taken.samples)
        if self._init_error is not None:
            result.errors, self._init_error = {taken.first: self._init_error}, None
            return result
        seed, indices = decode_rows(self._queue.rows(taken))
        if taken.one_worker:
            self._make_batch(taken, seed, indices, result)
            return result
        samples: list[Any] = []
        for slot in range(taken.first, taken.first + taken.samples):
            try:
                self._seed(seed, taken.epoch, taken.position + slot)
                samples.append(self._dataset[indices[slot]])
            except Exception:
                result.errors = {slot: self._error()}
                break
        self._store(taken, samples, result)
        return result

    def _make_batch(self, taken: Taken, seed: int, indices: Any, result: Result) -> None:
        try:
            if self._together:
                self._seed(seed, taken.epoch, taken.position)
                samples = self._dataset.__getitems__(indices)
            else:
                samples = []
                for slot, index in enumerate(indices):
                    self._seed(seed, taken.epoch, taken.position + slot)
                    samples.append(self._dataset[index])
            result.batch, result.has_batch = self._collate(samples), True
        except Exception:
            result.errors = {0: self._error()}

    def _store(self, taken: Taken, samples: list[Any], result: Result) -> None:
        """Write samples into the slab; send those that do not have the layout as they are."""
        if not samples:
            return
        layout = self._find_layout(taken, samples[0])
        result.text, result.objects = {}, {}
        if layout is None:
            result.objects = dict(enumerate(samples, taken.first))
            return
        start = taken.slab * self._queue.slab_bytes + self._queue.data_start(taken.count, taken.row_bytes)
        size = layout.starts(taken.count)[-1]
        if not self._fits(taken, layout):
            result.objects = dict(enumerate(samples, taken.first))
            return
        arrays = layout.arrays(self._slabs[start : start + size], taken.count)
        try:
            result.text = {taken.first: layout.store(samples, arrays, taken.first)} if layout.text_leaves else {}
            if not layout.text_leaves:
                layout.store(samples, arrays, taken.first)
        except DifferentSampleError:
            for slot, sample in enumerate(samples, taken.first):
                try:
                    result.text[slot] = layout.store([sample], arrays, slot)
                except DifferentSampleError:
                    result.objects[slot] = sample

    def _find_layout(self, taken: Taken, sample: Any) -> SampleLayout | None:
        """Return the layout of samples: that of the sample which any worker has made first."""
        if self._layout is None:
            if self._queue.layout_state == UNKNOWN:
                found = find_layout(sample)
                usable = found is not None and self._fits(taken, found)
                self._queue.propose_layout(pickle.dumps(found) if usable else b"")
            if description := self._queue.layout():
                self._layout = pickle.loads(description)  # noqa: S301 (a worker made it)
        return self._layout

    def _fits(self, taken: Taken, layout: SampleLayout) -> bool:
        """Return whether the slab has space for the arrays of a batch."""
        start = self._queue.data_start(taken.count, taken.row_bytes)
        return start + layout.starts(taken.count)[-1] <= self._queue.slab_bytes

    def _seed(self, seed: int, epoch: int, position: int) -> None:
        """Seed the global generators by the sample's position in the epoch, whichever worker makes it."""
        seed_global_rngs(seed, epoch, position)
        if self._torch_seed is not None:  # worker_init_fn has set a seed, which torch.initial_seed() must return
            state = torch.default_generator.get_state()
            state[:8] = torch.frombuffer(bytearray(self._torch_seed), dtype=torch.uint8)
            torch.default_generator.set_state(state)

    def _error(self) -> ExceptionWrapper:
        """Return the exception that is being handled, as torch delivers it."""
        error: ExceptionWrapper = wrapped(where=f"in DataLoader worker process {self._number}")
        try:
            pickle.dumps(error)
        except Exception:  # a class that the training process cannot find
            error.exc_type = RuntimeError
        return error

    # -- reporting -------------------------------------------------------------------------------------------------

    def _report(self, taken: Taken, result: Result) -> None:
        if result.is_empty:
            if self._queue.finish(self._number, taken):
                self._queue.send(pickle.dumps(Message(taken.slab, True)))
            return
        try:
            data, buffers = shared_pickle.dumps(result)
        except Exception as error:
            text = f"Caught {type(error).__name__} in DataLoader worker process {self._number}: {error}"
            failure = wrapped(where=f"in DataLoader worker process {self._number}")
            failure.exc_msg = text
            failure.exc_type = RuntimeError if failure.exc_type is None else failure.exc_type
            data, buffers = shared_pickle.dumps(
                Result(self._number, taken.slab, taken.first, taken.samples, errors={taken.first: failure})
            )
        message, memory = self._place(taken, data, buffers)
        if taken.one_worker:
            # Finished first: once the training process knows of the batch, its slab may get another one.
            message.complete = self._queue.finish(self._number, taken)
            self._send(message, memory)
            return
        self._send(message, memory)
        if self._queue.finish(self._number, taken):
            self._queue.send(pickle.dumps(Message(taken.slab, True)))

    def _place(self, taken: Taken, data: bytes, buffers: list[memoryview]) -> tuple[Message, SharedMemory | None]:
        """Copy the buffers into the slab, or into memory of their own; a small pickle is part of the message."""
        inline = len(data) + 32 * len(buffers) < MAX_MESSAGE_BYTES // 2
        parts = buffers if inline else [*buffers, memoryview(data)]
        message = Message(taken.slab, False, data if inline else None)
        total = sum(shared_pickle.aligned(part.nbytes) for part in parts)
        if not total:
            return message, None
        memory = None
        offset = self._queue.allocate(taken, total, self._end_of_arrays(taken))
        if offset is None:
            memory = SharedMemory.create(total, "batch")
            message.own_memory, offset, target = total, 0, memory.view
        else:
            start = taken.slab * self._queue.slab_bytes
            target = self._queue.slabs[start : start + self._queue.slab_bytes]
        places = []
        for part in parts:
            target[offset : offset + part.nbytes] = part
            places.append((offset, part.nbytes))
            offset += shared_pickle.aligned(part.nbytes)
        message.buffers = tuple(places)
        return message, memory

    def _end_of_arrays(self, taken: Taken) -> int:
        """Return the offset in the slab behind the arrays of the layout, if the batch has any."""
        start = self._queue.data_start(taken.count, taken.row_bytes)
        if taken.one_worker or self._layout is None or not self._fits(taken, self._layout):
            return start
        return start + self._layout.starts(taken.count)[-1]

    def _send(self, message: Message, memory: SharedMemory | None) -> None:
        if memory is None:
            self._queue.send(pickle.dumps(message))
        else:
            self._queue.send(pickle.dumps(message), memory.fd)
            memory.close()


def encode_rows(seed: int, indices: Any) -> bytes:
    """Return what workers must know of a batch's samples: the seed of the epoch, and the indices as they were drawn."""
    head = seed.to_bytes(8, "little", signed=True)
    if type(indices) is list and set(map(type, indices)) == {int}:
        try:
            return head + b"\0" * 8 + np.array(indices, np.int64).tobytes()
        except OverflowError:
            pass
    return head + b"\1" * 8 + pickle.dumps(indices)


def decode_rows(rows: memoryview) -> tuple[int, Any]:
    """Return what `encode_rows` was given."""
    seed = int.from_bytes(rows[:8], "little", signed=True)
    if rows[8]:
        return seed, pickle.loads(rows[16:])  # noqa: S301 (this program made it)
    return seed, np.frombuffer(rows[16:], np.int64).tolist()


def _stack(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    """Collate tensors as torch does, without allocating torch's shared memory: the batch is placed in the slab."""
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        stacked: torch.Tensor = torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        return stacked
    finally:
        torch_worker._worker_info = info
