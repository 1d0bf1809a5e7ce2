"""What finishing a batch takes of the card and of the host: by our kernel, beside torch's own operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.gpu.supplies import Material
from benchmarks.gpu.training import CROPPED
from benchmarks.result import Line, in_turns, median_ratio
from penstock.data.device.transform.draw import draw_transforms
from penstock.data.device.transform.kernel_transform import KernelTransform
from penstock.data.device.transform.torch_transform import TorchTransform

SAMPLES, SIDE = 128, 256
ROUNDS, BATCHES = 5, 16
"""So many batches are asked for while the card sleeps: it can be asked for a thousand things ahead."""
SLEEP_CYCLES = 400_000_000


class Taken(NamedTuple):
    """Milliseconds of a batch."""

    card: float
    host: float


def measure(_: Material) -> Iterator[Line]:
    pixels = torch.randint(0, 256, (SAMPLES, SIDE, SIDE, 3), dtype=torch.uint8, device="cuda").permute(0, 3, 1, 2)
    drawn = draw_transforms(CROPPED, (SIDE, SIDE), 0, 0, np.arange(SAMPLES))
    ways = [partial(way(CROPPED, pixels.device), pixels, drawn) for way in (KernelTransform, TorchTransform)]
    for way in ways:  # compiled, and memory made
        _taken(way)
    ours, torchs = in_turns([partial(_taken, way) for way in ways], ROUNDS)
    for who in ("card", "host"):
        own, other = ([getattr(each, who) for each in found] for found in (ours, torchs))
        yield Line(
            f"{SAMPLES} pictures finished (window, mirrored, colours): time of the {who}",
            f"{median(own):.2f} ms",
            f"by torch's operations: {median(other):.2f} ms",
            median_ratio(own, other),
            0.5,
            "at most",
        )


def _taken(finish: Callable[[], torch.Tensor]) -> Taken:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    start = time.perf_counter()
    for _ in range(BATCHES):
        finish()
    host_s = time.perf_counter() - start
    end.record()
    torch.cuda.synchronize()
    return Taken(begin.elapsed_time(end) / BATCHES, host_s / BATCHES * 1e3)
