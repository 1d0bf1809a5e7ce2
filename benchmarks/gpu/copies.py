"""The copy itself: at which rate it runs beside everything else, and how much of it a step hides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import torch

from benchmarks.gpu.bare_loop import bare_reading
from benchmarks.gpu.stream import gpu_times
from benchmarks.gpu.throughput import Material
from benchmarks.result import Line
from penstock import Array, Loader

BATCH = 32
BATCH_BYTES = BATCH * 3 * 1024 * 1024
WARM_S, COUNTED_S = 6.0, 2.0
STEPS = 192
"""Of which copies are to be hidden: half a pass, so that none has to begin."""
ALONE = "pinned memory, alone"


class Bare(NamedTuple):
    """Bytes per second, both at once and without a loader: they share the machine's memory."""

    read: float
    copied: float


def measure(material: Material) -> Iterator[Line]:
    pinned, shards = _pinned_rate(), material.arrays()
    bare = _bare(shards)
    loader = Loader(shards, {"x": Array(".npy")}, BATCH, shuffle=True, device="cuda")
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_S:  # slabs are pinned, workers there, and enough batches begun
        for _ in loader:
            pass
    yield from _copies(loader, pinned, bare)
    yield from _hidden(loader, pinned)
    loader.close()


def _copies(loader: Loader, pinned: float, bare: Bare) -> Iterator[Line]:
    before, start, batches = gpu_times(loader), time.perf_counter(), 0
    while time.perf_counter() - start < COUNTED_S:
        for _ in loader:
            batches += 1
    torch.cuda.synchronize()
    elapsed, copying_s = time.perf_counter() - start, gpu_times(loader).copying_s - before.copying_s
    what, copied, through = "copies to the card, all cores writing", batches / copying_s, batches / elapsed
    yield _of(ALONE, what, copied, pinned)
    yield _of("pinned memory, all cores reading files", what, copied, bare.copied)
    yield _of("both without a loader, the slower", "raw arrays through the loader", through, min(bare))


def _of(against: str, what: str, batches_s: float, other: float) -> Line:
    rate = batches_s * BATCH_BYTES
    return Line(what, f"{rate / 1e9:.1f} GB/s", f"{against}: {other / 1e9:.1f} GB/s", rate / other, 0.9, "at least")


def _hidden(loader: Loader, pinned: float) -> Iterator[Line]:
    step = step_of(0.02)
    before, batches = gpu_times(loader), iter(loader)
    for batch in islice(batches, STEPS):
        step()
        batch["x"].view(-1)[:8].float().sum()
    torch.cuda.synchronize()
    after = gpu_times(loader)
    exposed, copying = after.exposed_s - before.exposed_s, after.copying_s - before.copying_s
    figure, against = f"{exposed * 1e3:.2f} ms seen", f"copies took {copying * 1e3:.1f} ms"
    yield _of(ALONE, "copies to the card, beside a step of 20 ms", STEPS / copying, pinned)
    yield Line("copies hidden behind a step of 20 ms", figure, against, 1 - exposed / copying, 0.95, "at least")


def step_of(seconds: float) -> Callable[[], None]:
    """Products of matrices that take about so long."""
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
    times = 1

    def step() -> None:
        result = matrix
        for _ in range(times):
            result = result @ matrix

    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times = max(1, round(times * seconds / (time.perf_counter() - start)))
    return step


def _bare(shards: list[str]) -> Bare:
    host = torch.empty(BATCH_BYTES, dtype=torch.uint8, pin_memory=True)
    card = torch.empty_like(host, device="cuda")
    spent: list[float] = []

    def copy() -> None:
        start = time.perf_counter()
        card.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)

    read = bare_reading(shards, copy)
    return Bare(read, len(spent) * BATCH_BYTES / sum(spent))


def _pinned_rate() -> float:
    host = torch.empty(BATCH_BYTES, dtype=torch.uint8, pin_memory=True)
    card = torch.empty_like(host, device="cuda")
    for _ in range(3):
        card.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        card.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    return 20 * BATCH_BYTES / (time.perf_counter() - start)
