"""How many samples a second arrive on the card, and what they cost the cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from penstock import Loader
from penstock.core.stats import CardTimes

Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Supply:
    rate: float
    """Samples per second."""
    core_ms: float
    """CPU time of all processes per sample."""


def supply(
    batches: Callable[[], Iterable[Batch]], warm_s: float, counted_s: float, use: Callable[[Batch], object]
) -> Supply:
    """Over as many passes as fill the time; `use` is what is done with each batch.

    Warming up begins with the first batch: before it CUDA is loaded, after it our worker processes start. What it
    takes to leave the last pass is not counted: dozens of processes that end.
    """
    samples, cores, begin, start = 0, 0.0, 0.0, 0.0
    with closing(_endless(batches)) as passes:
        for batch in passes:
            use(batch)
            now = time.perf_counter()
            start = start or now
            if begin:
                samples += len(batch["__key__"])
                if now - begin > counted_s:
                    break
            elif now - start > warm_s:
                torch.cuda.synchronize()
                begin, cores = time.perf_counter(), _core_seconds()
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - begin
        return Supply(samples / elapsed, (_core_seconds() - cores) / samples * 1e3)


def card_times(loader: Loader) -> CardTimes:
    """Of a loader that has delivered something."""
    times = loader.card_times
    assert times is not None
    return times


def to_card(batch: Batch) -> dict[str, torch.Tensor]:
    """As a training loop does it for a loader that stops at the CPU."""
    return {
        name: value.to("cuda", non_blocking=True) for name, value in batch.items() if isinstance(value, torch.Tensor)
    }


def _endless(batches: Callable[[], Iterable[Batch]]) -> Generator[Batch, None, None]:
    while True:
        yield from batches()


def _core_seconds() -> float:
    """Of this process and all it started, those that have ended included."""
    own = psutil.Process()
    times = own.cpu_times()
    total = times.children_user + times.children_system
    for process in (own, *own.children(recursive=True)):
        try:
            spent = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system
    return total
