"""What a loader really takes when it is given 512 MiB: arena, slabs and workers together, counted by the kernel."""

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
    """In a process of its own, so that nothing of ours was there before."""
    with tempfile.TemporaryDirectory() as name:
        make_shards(Path(name), SA1B, samples=SAMPLES, shards=4)
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", name], check=True, capture_output=True, text=True
        )
    taken = int(answer.stdout)
    yield Line(
        f"peak memory with a budget of {BUDGET >> 20} MiB",
        f"{taken / (1 << 20):.0f} MiB",
        f"the budget: {BUDGET >> 20} MiB",
        taken / BUDGET,
        1.0,
        "at most",
    )


def _run(folder: Path) -> int:
    """Bytes above what a process that has torch and the decoders has anyway; pages shared with workers count once."""
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
