"""The rate of copies to the GPU while the loader's workers write, and how much of their time a step hides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import torch

from benchmarks.gpu.bare_loop import bare_read_rate
from benchmarks.gpu.stream import gpu_times
from benchmarks.gpu.throughput import ShardSets
from benchmarks.result import Line
from penstock import Array, Loader

BATCH = 32
BATCH_BYTES = BATCH * 3 * 1024 * 1024
WARM_UP_S, COUNTED_S = 6.0, 2.0
STEPS = 192
"""Steps that are to hide copies: half an epoch, so that no new epoch begins among them."""
NOTHING_ELSE = "pinned memory, nothing else running"


class BareRates(NamedTuple):
    """Bytes per second of reading and copying at the same time without a loader: they share the machine's memory."""

    read: float
    copied: float


def measure(shard_sets: ShardSets) -> Iterator[Line]:
    pinned, shards = _pinned_rate(), shard_sets.arrays()
    bare = _bare_rates(shards)
    loader = Loader(shards, {"x": Array(".npy")}, BATCH, shuffle=True, device="cuda")
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_UP_S:  # until slabs are pinned, workers run and lookahead has grown
        for _ in loader:
            pass
    yield from _copies(loader, pinned, bare)
    yield from _hidden(loader, pinned)
    loader.close()


def _copies(loader: Loader, pinned: float, bare: BareRates) -> Iterator[Line]:
    before, start, batches = gpu_times(loader), time.perf_counter(), 0
    while time.perf_counter() - start < COUNTED_S:
        for _ in loader:
            batches += 1
    torch.cuda.synchronize()
    elapsed, copying_s = time.perf_counter() - start, gpu_times(loader).copying_s - before.copying_s
    what, copied, delivered = "copies to the GPU while all cores write", batches / copying_s, batches / elapsed
    yield _bandwidth_line(what, copied, NOTHING_ELSE, pinned)
    yield _bandwidth_line(what, copied, "pinned memory while all cores read files", bare.copied)
    yield _bandwidth_line(
        "raw arrays through the loader", delivered, "the slower of the two without a loader", min(bare)
    )


def _bandwidth_line(what: str, batches_s: float, against: str, other: float) -> Line:
    rate = batches_s * BATCH_BYTES
    return Line(what, f"{rate / 1e9:.1f} GB/s", f"{against}: {other / 1e9:.1f} GB/s", rate / other, 0.9, "at least")


def _hidden(loader: Loader, pinned: float) -> Iterator[Line]:
    step = make_step(0.02)
    before, batches = gpu_times(loader), iter(loader)
    for batch in islice(batches, STEPS):
        step()
        batch["x"].view(-1)[:8].float().sum()
    torch.cuda.synchronize()
    after = gpu_times(loader)
    exposed, copying = after.exposed_s - before.exposed_s, after.copying_s - before.copying_s
    figure, against = f"{exposed * 1e3:.2f} ms not hidden", f"copies took {copying * 1e3:.1f} ms"
    yield _bandwidth_line("copies to the GPU during steps of 20 ms", STEPS / copying, NOTHING_ELSE, pinned)
    yield Line("copies hidden behind steps of 20 ms", figure, against, 1 - exposed / copying, 0.95, "at least")


def make_step(seconds: float) -> Callable[[], None]:
    """Return a function that launches matrix products which take about that long on the GPU."""
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
    products = 1

    def step() -> None:
        result = matrix
        for _ in range(products):
            result = result @ matrix

    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        products = max(1, round(products * seconds / (time.perf_counter() - start)))
    return step


def _bare_rates(shards: list[str]) -> BareRates:
    on_host = torch.empty(BATCH_BYTES, dtype=torch.uint8, pin_memory=True)
    on_gpu = torch.empty_like(on_host, device="cuda")
    durations: list[float] = []

    def copy() -> None:
        start = time.perf_counter()
        on_gpu.copy_(on_host, non_blocking=True)
        torch.cuda.synchronize()
        durations.append(time.perf_counter() - start)

    read = bare_read_rate(shards, copy)
    return BareRates(read, len(durations) * BATCH_BYTES / sum(durations))


def _pinned_rate() -> float:
    """Return the bytes per second of copies from pinned memory while nothing else runs."""
    on_host = torch.empty(BATCH_BYTES, dtype=torch.uint8, pin_memory=True)
    on_gpu = torch.empty_like(on_host, device="cuda")
    for _ in range(3):
        on_gpu.copy_(on_host, non_blocking=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        on_gpu.copy_(on_host, non_blocking=True)
    torch.cuda.synchronize()
    return 20 * BATCH_BYTES / (time.perf_counter() - start)
