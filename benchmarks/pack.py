"""Packing loose files against the bare work on the same cores, and the memory of a pack as the data grows."""

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
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources
from penstock.testing import SA1B, sample_parts

TARGET = 0.85
MEMORY_TARGET = 1.15
"""Four times the data may cost at most this much of the peak memory of a worker."""
DISTINCT = 48
SAMPLES = 768
ROUNDS = 3
OPTIONS = PackOptions(arrays="raw", image_size=1024, shard_bytes=48 << 20)

_spawn = multiprocessing.get_context("spawn")


def measure() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [sample_parts(SA1B, number) for number in range(DISTINCT)]
        _lay_out(folder / "loose", parts, SAMPLES)
        bare, packed = in_turns([lambda: _bare(parts, SAMPLES), lambda: _pack(folder)], ROUNDS)
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


def _lay_out(folder: Path, parts: list[dict[str, bytes]], samples: int) -> None:
    """Distinct samples once, the others as hard links: the packer cannot tell."""
    folder.mkdir()
    for number in range(samples):
        for suffix, data in parts[number % len(parts)].items():
            path = folder / f"sa_{number:06d}{suffix}"
            if number < len(parts):
                path.write_bytes(data)
            else:
                os.link(folder / f"sa_{number % len(parts):06d}{suffix}", path)


def _pack(folder: Path) -> float:
    """Samples per second of the whole command's work: plan, processes' start, reading, writing, fsync."""
    shutil.rmtree(folder / "packed", ignore_errors=True)
    os.sync()  # the other contestant wrote nothing: our own earlier round must not weigh on this one
    return SAMPLES / seconds(lambda: _run(folder / "loose", folder / "packed"))


def _run(src: Path, dst: Path) -> None:
    packed = sum(report.samples for report in pack(_plan(src), dst))
    assert packed == len(list(src.glob("*.jpg")))


def _plan(src: Path) -> object:
    return make_plan(list(find_pack_sources(str(src), OPTIONS)), OPTIONS)


def _bare(parts: list[dict[str, bytes]], samples: int) -> float:
    """What the cores can do with nothing around it: samples in memory, no files, processes already warm."""
    cores = usable_cores()
    pipes, processes = [], []
    for _ in range(cores):
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=_convert_many, args=(theirs, parts, samples // cores))
        process.start()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()  # warm
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
    """The largest resident size, in KiB, of any process of a pack of that many samples."""
    src = folder / f"loose-{samples}"
    _lay_out(src, parts, samples)
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=_pack_and_tell, args=(theirs, src, folder / f"packed-{samples}"))
    process.start()
    peak = int(ours.recv())
    process.join()
    return peak


def _pack_and_tell(pipe: Connection, src: Path, dst: Path) -> None:
    _run(src, dst)
    pipe.send(max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
