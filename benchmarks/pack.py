"""Compares packing of loose files with the bare conversion on the same cores, and its memory for two sizes of data."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from benchmarks.result import Line, in_turns, median_ratio, seconds
from penstock.core.cores import usable_cores
from penstock.shards.pack.convert import convert_parts
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import PackPlan, make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources
from penstock.testing import SA1B, sample_parts

TARGET = 0.85
MEMORY_TARGET = 1.15
"""Largest accepted ratio of a process's peak memory with four times the data to that with the data."""
DISTINCT = 48
"""Number of different samples; the others are hard links to them."""
SAMPLES = 768
ROUNDS = 3
OPTIONS = PackOptions(arrays="raw", image_size=1024, shard_bytes=48 << 20)

_spawn = multiprocessing.get_context("spawn")


def measure() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [sample_parts(SA1B, number) for number in range(DISTINCT)]
        write_loose_files(folder / "loose", parts, SAMPLES)
        bare, packed = in_turns([lambda: _conversion_rate(parts, SAMPLES), lambda: pack_rate(folder)], ROUNDS)
        yield Line(
            f"pack SA-1B-like loose files ({SAMPLES} samples)",
            f"{median(packed):.0f} samples/s",
            f"bare decode and encode: {median(bare):.0f}",
            median_ratio(packed, bare),
            TARGET,
            "at least",
        )
        small, large = (_peak_memory(folder, parts, samples) for samples in (SAMPLES // 4, SAMPLES))
        yield Line(
            f"memory of a pack, {SAMPLES // 4} → {SAMPLES} samples",
            f"{large / 1024:.0f} MB per process",
            f"a quarter of the data: {small / 1024:.0f} MB",
            large / small,
            MEMORY_TARGET,
            "at most",
        )


def write_loose_files(folder: Path, parts: list[dict[str, bytes]], samples: int) -> None:
    """Write the distinct samples once, and the others as hard links, which the packer reads like files of their own."""
    folder.mkdir()
    for number in range(samples):
        for suffix, data in parts[number % len(parts)].items():
            path = folder / f"sa_{number:06d}{suffix}"
            if number < len(parts):
                path.write_bytes(data)
            else:
                os.link(folder / f"sa_{number % len(parts):06d}{suffix}", path)


def pack_rate(folder: Path) -> float:
    """Return the samples per second of the whole command: plan, start of the processes, reading, writing, fsync."""
    shutil.rmtree(folder / "packed", ignore_errors=True)
    os.sync()  # the bare conversion writes nothing, and the writes of an earlier round must not slow this one
    return SAMPLES / seconds(lambda: _run(folder / "loose", folder / "packed"))


def _run(src: Path, dst: Path) -> None:
    packed = sum(report.samples for report in pack(_plan(src), dst))
    assert packed == len(list(src.glob("*.jpg")))


def _plan(src: Path) -> PackPlan:
    return make_plan(list(find_pack_sources(str(src), OPTIONS)), OPTIONS)


def _conversion_rate(parts: list[dict[str, bytes]], samples: int) -> float:
    """Return the samples per second of the conversion alone: samples in memory, no files, processes already warm."""
    cores = usable_cores()
    pipes, processes = [], []
    for _ in range(cores):
        parent_end, child_end = _spawn.Pipe()
        process = _spawn.Process(target=_convert_many, args=(child_end, parts, samples // cores))
        process.start()
        pipes.append(parent_end)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()  # "warm"
    start = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    for pipe in pipes:
        pipe.recv()
    elapsed = time.perf_counter() - start
    for process in processes:
        process.join()
    return cores * (samples // cores) / elapsed


def _convert_many(pipe: Connection, parts: list[dict[str, bytes]], count: int) -> None:
    convert_parts(parts[0].items(), OPTIONS)
    pipe.send("warm")
    pipe.recv()
    for number in range(count):
        convert_parts(parts[number % len(parts)].items(), OPTIONS)
    pipe.send("done")


def _peak_memory(folder: Path, parts: list[dict[str, bytes]], samples: int) -> int:
    """Return the largest resident size, in KiB, of any process that packs so many samples."""
    src = folder / f"loose-{samples}"
    write_loose_files(src, parts, samples)
    parent_end, child_end = _spawn.Pipe()
    process = _spawn.Process(target=_pack_and_send_peak, args=(child_end, src, folder / f"packed-{samples}"))
    process.start()
    peak = int(parent_end.recv())
    process.join()
    return peak


def _pack_and_send_peak(pipe: Connection, src: Path, dst: Path) -> None:
    _run(src, dst)
    pipe.send(max(resource.getrusage(of).ru_maxrss for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
