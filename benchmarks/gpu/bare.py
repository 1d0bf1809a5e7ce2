"""What the cores decode if they do nothing else: what a loader that leaves decoding to them can reach at most.

Machines that are lent differ by half from one day to the next; beside this figure it can be seen which of them it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from benchmarks.gpu.data import Parts
from penstock.flow.fields import Field

SECONDS = 2.0


def bare_rate(samples: Sequence[Parts], fields: Mapping[str, Field]) -> float:
    """Samples per second of all cores together, each with a process and memory of its own."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        list(pool.map(partial(_rate, samples, fields), [0.1] * cores))  # everybody is there
        return sum(pool.map(partial(_rate, samples, fields), [SECONDS] * cores))


def _rate(samples: Sequence[Parts], fields: Mapping[str, Field], seconds: float) -> float:
    columns = [(field, next(each for each in field.suffixes if each in samples[0])) for field in fields.values()]
    outs = [field.decoded(suffix, memoryview(samples[0][suffix])) for field, suffix in columns]
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        sample = samples[count % len(samples)]
        for (field, suffix), out in zip(columns, outs, strict=True):
            field.decode_into(suffix, memoryview(sample[suffix]), out)
        count += 1
    return count / elapsed
