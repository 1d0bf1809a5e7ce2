"""The life of a decoding process: load the job, say so, wait for the start, decode, say how fast."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.probe.decode_samples import DecodeMaterial, part_of


def main() -> None:
    """`JOB SECONDS` as arguments; the job was written by our own parent, in a folder of its own."""
    material: DecodeMaterial = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301
    decode_for(material, 0.0)  # libraries load at the first sample
    print("ready", flush=True)
    if sys.stdin.readline():  # nothing comes where the parent is gone
        print(*decode_for(material, float(sys.argv[2])), flush=True)


class DecodeResult(NamedTuple):
    """What one process did, and what it took."""

    samples: int
    seconds: float
    cpu_s: float


def decode_for(
    material: DecodeMaterial,
    seconds: float,
    clock: Clock = SYSTEM_CLOCK,
    cpu_s: Callable[[], float] = time.process_time,
) -> DecodeResult:
    """One sample after the other and over again, as a worker of the loader does it; one at least."""
    slots = {name: np.empty(slot.shape, slot.dtype) for name, slot in material.slots.items()}
    ways = [(field, slots.get(name) if field.fixed_shape else None) for name, field in material.fields.items()]
    began, cpu_began = clock.now(), cpu_s()
    for done, sample in enumerate(cycle(material.samples), 1):
        for field, slot in ways:
            suffix, data = part_of(field, sample)
            if slot is None:
                field.decode_value(suffix, memoryview(data))
            else:
                field.decode_into(suffix, memoryview(data), slot)
        passed_s = clock.now() - began
        if passed_s >= seconds:
            return DecodeResult(done, max(passed_s, 1e-9), cpu_s() - cpu_began)
    raise AssertionError("there is always a sample")  # pragma: no cover
