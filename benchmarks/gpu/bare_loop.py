"""What the cores can do if they do nothing else: decode pictures, or read files while copies run to the card.

A loader can reach that at most. Machines that are lent differ by half from one day to the next; beside this figure it
can be seen which of them it was.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.data import Parts
from penstock.core.slab_layout import SlabLayout, SlotSpec
from penstock.data.fields import Field

SECONDS = 2.0
PIECE_BYTES, ROOM_BYTES = 3 << 20, 96 << 20
"""Read at a time, and to where by each core: more than it has caches. What is decoded goes through as much, as it goes
through a loader's slabs."""


def bare_rate(samples: Sequence[Parts], fields: Mapping[str, Field]) -> float:
    """Samples per second of all cores together, each with a process and memory of its own."""
    return _on_all_cores(partial(_rate, samples, fields))


def bare_reading(files: Sequence[str], meanwhile: Callable[[], object]) -> float:
    """Bytes per second that all cores read into memory of their own; `meanwhile` is called until they have done so."""
    return _on_all_cores(partial(_read, files), meanwhile)


def _on_all_cores(rate: Callable[[float], float], meanwhile: Callable[[], object] | None = None) -> float:
    """The sum of what each of them comes to in that many seconds."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        list(pool.map(rate, [0.1] * cores))  # everybody is there
        rates = [pool.submit(rate, SECONDS) for _ in range(cores)]
        while meanwhile is not None and not all(each.done() for each in rates):
            meanwhile()
        return sum(each.result() for each in rates)


def _read(files: Sequence[str], seconds: float) -> float:
    """Piece by piece from one file after the other, and to one place after the other."""
    room = memoryview(mmap.mmap(-1, ROOM_BYTES))  # as slabs are: begins with a page
    with ExitStack() as stack:
        opened = [stack.enter_context(open(path, "rb", buffering=0)).fileno() for path in files]
        last = min(os.fstat(file).st_size for file in opened) - PIECE_BYTES
        done, at, start = 0, 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            file = opened[at // PIECE_BYTES % len(opened)]
            to = room[at % ROOM_BYTES :][:PIECE_BYTES]
            done += os.preadv(file, [to], at % last)
            at += PIECE_BYTES
    return done / elapsed


def _rate(samples: Sequence[Parts], fields: Mapping[str, Field], seconds: float) -> float:
    columns = [(field, next(each for each in field.suffixes if each in samples[0])) for field in fields.values()]
    slots = _slots([field.decode_value(suffix, memoryview(samples[0][suffix])) for field, suffix in columns])
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        sample = samples[count % len(samples)]
        for (field, suffix), array in zip(columns, slots, strict=True):
            field.decode_into(suffix, memoryview(sample[suffix]), array[count % len(array), ...])
        count += 1
    return count / elapsed


def _slots(values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """For each value an array of many like it, all of which have been written to once."""
    slots = {str(number): SlotSpec(value.shape, value.dtype.str) for number, value in enumerate(values)}
    layout = SlabLayout(slots, max(1, ROOM_BYTES // sum(slot.size for slot in slots.values())))
    memory = mmap.mmap(-1, layout.size)
    np.frombuffer(memory, np.uint8).fill(1)
    return [*layout.arrays(memoryview(memory)).values()]
