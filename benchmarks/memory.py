"""Measures the memory of a loader with a budget of 512 MiB: arena, slabs and workers, as the kernel counts it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import penstock
from benchmarks.result import Line
from penstock.bench.process_usage import MemoryPeak, tree_memory_bytes
from penstock.testing import SA1B, make_shards

BUDGET = 512 << 20
SAMPLES = 192
BATCH = 8


def measure() -> Iterator[Line]:
    """Run a loader in a fresh process, in which nothing of Penstock has been used before."""
    with tempfile.TemporaryDirectory() as name:
        make_shards(Path(name), SA1B, samples=SAMPLES, shards=4)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", name], check=True, capture_output=True, text=True
        )
    used = int(done.stdout)
    yield Line(
        f"peak memory with a budget of {BUDGET >> 20} MiB",
        f"{used / (1 << 20):.0f} MiB",
        f"the budget: {BUDGET >> 20} MiB",
        used / BUDGET,
        1.0,
        "at most",
    )


def _run(folder: Path) -> int:
    """Return the bytes in addition to those of a process that has imported torch and the decoders.

    Pages that are shared with workers count once.
    """
    import torch

    torch.zeros(1)
    fields = {
        "image": penstock.Image(".jpg", size=1024),
        "features": penstock.Array("_features.npz", key="features"),
        "edge": penstock.Array("_features.npz", key="edge"),
    }
    shards = sorted(folder.glob("*.tar"))
    before = tree_memory_bytes()
    with MemoryPeak() as memory:
        loader = penstock.Loader(
            shards, fields, BATCH, shuffle=True, engine=penstock.EngineOptions(memory_bytes=BUDGET)
        )
        delivered = sum(len(batch["__key__"]) for _ in range(3) for batch in loader)
        loader.close()
    if delivered != 3 * SAMPLES:
        raise RuntimeError(f"{delivered} samples were delivered, not {3 * SAMPLES}")
    return memory.peak_bytes - before


if __name__ == "__main__":
    print(_run(Path(sys.argv[1])))
