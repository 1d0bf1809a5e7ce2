"""The rate of all CPU cores without a loader: decoding images, or reading files while batches are copied to the GPU.

This is the most that a loader can reach. Rented machines differ by half from one day to the next, and this figure shows
how fast the machine of a run was.
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
from penstock.data.fields.base import SampleContext

SECONDS = 2.0
READ_BYTES = 3 << 20
"""Bytes per read."""
BUFFER_BYTES = 96 << 20
"""Memory that each core reads or decodes into, in turn: more than its caches hold, as a loader's slabs are."""


def bare_decode_rate(samples: Sequence[Parts], fields: Mapping[str, Field]) -> float:
    """Return the samples per second that all cores decode together, each in a process with memory of its own."""
    return _sum_over_cores(partial(_decode_rate, samples, fields))


def bare_read_rate(files: Sequence[str], meanwhile: Callable[[], object]) -> float:
    """Return the bytes per second that all cores read into memory; `meanwhile` is called until they have finished."""
    return _sum_over_cores(partial(_read_rate, files), meanwhile)


def _sum_over_cores(rate: Callable[[float], float], meanwhile: Callable[[], object] | None = None) -> float:
    """Run the function for SECONDS in one process per core, and return the sum of the rates."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        list(pool.map(rate, [0.1] * cores))  # starts all processes before they are timed
        rates = [pool.submit(rate, SECONDS) for _ in range(cores)]
        while meanwhile is not None and not all(each.done() for each in rates):
            meanwhile()
        return sum(each.result() for each in rates)


def _read_rate(files: Sequence[str], seconds: float) -> float:
    """Read from one file after the other, each time at the next offset and to the next place in the buffer."""
    buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))  # aligned to pages, as slabs are
    with ExitStack() as stack:
        opened = [stack.enter_context(open(path, "rb", buffering=0)).fileno() for path in files]
        last = min(os.fstat(file).st_size for file in opened) - READ_BYTES
        read_bytes, offset, start = 0, 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            file = opened[offset // READ_BYTES % len(opened)]
            target = buffer[offset % BUFFER_BYTES :][:READ_BYTES]
            read_bytes += os.preadv(file, [target], offset % last)
            offset += READ_BYTES
    return read_bytes / elapsed


def _decode_rate(samples: Sequence[Parts], fields: Mapping[str, Field], seconds: float) -> float:
    columns = [(field, next(each for each in field.suffixes if each in samples[0])) for field in fields.values()]
    slots = _make_slots(
        [field.decode_value(suffix, memoryview(samples[0][suffix]), SampleContext()) for field, suffix in columns]
    )
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        sample = samples[count % len(samples)]
        for (field, suffix), array in zip(columns, slots, strict=True):
            field.decode_into(suffix, memoryview(sample[suffix]), array[count % len(array), ...], SampleContext())
        count += 1
    return count / elapsed


def _make_slots(values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return for each value an array with slots of its shape and dtype; every page has been written to once."""
    slots = {str(number): SlotSpec(value.shape, value.dtype.str) for number, value in enumerate(values)}
    layout = SlabLayout(slots, max(1, BUFFER_BYTES // sum(slot.size for slot in slots.values())))
    memory = mmap.mmap(-1, layout.size)
    np.frombuffer(memory, np.uint8).fill(1)
    return [*layout.arrays(memoryview(memory)).values()]
