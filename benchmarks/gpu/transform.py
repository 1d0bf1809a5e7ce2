"""Measure the GPU and host time of transforming a batch, by our kernel and by torch's operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.gpu.throughput import ShardSets
from benchmarks.gpu.training import JITTERED
from benchmarks.result import Line, in_turns, median_ratio
from penstock.data.device.transform.draw import draw_transforms
from penstock.data.device.transform.kernel_transform import KernelTransform
from penstock.data.device.transform.torch_transform import TorchTransform

SAMPLES, SIDE = 128, 256
TRANSFORM = replace(JITTERED, size=224)
ROUNDS, BATCHES = 5, 16
"""Rounds, and batches that are launched in each while the GPU sleeps; its queue holds a thousand launches."""
SLEEP_CYCLES = 400_000_000
"""Clock cycles for which the GPU sleeps first, so that it does not run before all batches are launched."""


class BatchTimes(NamedTuple):
    """Milliseconds that a batch takes."""

    gpu: float
    host: float
    """Time until all kernels of the batch are launched."""


def measure(_: ShardSets) -> Iterator[Line]:
    pixels = torch.randint(0, 256, (SAMPLES, SIDE, SIDE, 3), dtype=torch.uint8, device="cuda").permute(0, 3, 1, 2)
    drawn = draw_transforms(TRANSFORM, (SIDE, SIDE), 0, 0, np.arange(SAMPLES))
    transforms = [partial(kind(TRANSFORM, pixels.device), pixels, drawn) for kind in (KernelTransform, TorchTransform)]
    for transform in transforms:  # compiles the kernel and allocates memory
        _times(transform)
    with_kernel, with_torch = in_turns([partial(_times, transform) for transform in transforms], ROUNDS)
    for side, label in (("gpu", "GPU"), ("host", "host")):
        ours, other = ([getattr(times, side) for times in rounds] for rounds in (with_kernel, with_torch))
        yield Line(
            f"{SAMPLES} images transformed (resize, flip, colour jitter): time of the {label}",
            f"{median(ours):.2f} ms",
            f"by torch's operations: {median(other):.2f} ms",
            median_ratio(ours, other),
            0.5,
            "at most",
        )


def _times(transform: Callable[[], torch.Tensor]) -> BatchTimes:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    start = time.perf_counter()
    for _ in range(BATCHES):
        transform()
    host_s = time.perf_counter() - start
    end.record()
    torch.cuda.synchronize()
    return BatchTimes(begin.elapsed_time(end) / BATCHES, host_s / BATCHES * 1e3)
