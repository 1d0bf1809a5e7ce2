"""`penstock demo`: what the package does, on shards it makes itself."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, TypeVar

import typer

from penstock.cli import console
from penstock.errors import SettingError
from penstock.report.text import human_bytes, table
from penstock.shards.check import Structure, check_shards
from penstock.shards.codecs.arrays import decode_npy, decode_npz
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.codecs.jpeg import decode_jpeg
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_sources
from penstock.shards.scan import index_all, index_of
from penstock.shards.source import open_shard
from penstock.testing import SA1B, make_shards

IMAGE_SIZE = 1024
"""What the model takes: the long side, in pixels."""
ROUNDS = 5
MARK = "made-by-penstock-demo"

Parts = list[tuple[str, bytes]]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one sample of a set of shards costs."""

    sample_bytes: float
    image_ms: float
    arrays_ms: float


def demo(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where the shards go; kept afterwards.")] = Path("demo"),
    samples: Annotated[int, typer.Option(min=2, help="How many samples to make.")] = 64,
) -> None:
    """Make SA-1B-like shards, index, check and pack them, and show what packing did.

    The shards hold pictures of 1500×2250 and feature maps of 2 MB in deflated NPZ files, in the order "all pictures,
    then all features" that other readers take for half samples. Needs about 0.4 GB of disk and under a minute.
    """
    _clear(folder)
    sources = _make(folder / "shards", samples)
    _index(sources)
    _check("as made", sources)
    packed = _pack(folder / "shards", folder / "packed")
    _check("packed", packed)
    _compare(sources, packed)
    console.out.print(f"the shards are in {folder}/; try: penstock shards ls {folder}/packed", markup=False)


def _clear(folder: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise SettingError(f"{str(folder)!r} is not empty and not from a demo", advice="Give another --folder.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def _make(folder: Path, samples: int) -> list[Path]:
    folder.mkdir()
    with console.notices.status("making shards …"):
        shards, seconds = _timed(lambda: make_shards(folder, SA1B, samples=samples, shards=2, order="grouped"))
    size = sum(shard.stat().st_size for shard in shards)
    _say("made", f"{samples} samples in {len(shards)} shards, {human_bytes(size)}, all .jpg before all .npz", seconds)
    return shards


def _index(shards: list[Path]) -> None:
    found, seconds = _timed(lambda: list(index_all(shards, rebuild=True)))
    indexes = [scanned.index for scanned in found if scanned.index is not None]
    parts = sum(index.parts for index in indexes)
    size = sum(Path(f"{shard}.pidx").stat().st_size for shard in shards)
    _say("indexed", f"{parts} parts paired to {sum(map(len, indexes))} samples; index {human_bytes(size)}", seconds)


def _check(what: str, shards: list[Path]) -> None:
    with console.notices.status("decoding everything …"):
        events, seconds = _timed(lambda: list(check_shards(map(str, shards), decode=True)))
    flaws = sum(len(event.flaws) if isinstance(event, Structure) else len(event[1]) for event in events)
    samples = sum(event.samples for event in events if isinstance(event, Structure))
    _say(f"checked {what}", f"{samples} samples decoded on all cores, {flaws} flaws", seconds)


def _pack(src: Path, dst: Path) -> list[Path]:
    options = PackOptions(arrays="raw", image_size=IMAGE_SIZE, shard_bytes=64 << 20)
    with console.notices.status("packing …"):
        plan = make_plan(list(find_sources(str(src), options)), options)
        reports, seconds = _timed(lambda: list(pack(plan, dst)))
    samples = sum(report.samples for report in reports)
    _say("packed", f"{samples} samples in {len(reports)} shards: pictures to {IMAGE_SIZE} px, arrays raw", seconds)
    return [dst / report.name for report in reports]


def _compare(before: list[Path], after: list[Path]) -> None:
    """Both sets in turns, so that a slow moment of the machine strikes both."""
    rounds = [(_cost(before), _cost(after)) for _ in range(ROUNDS)]
    old, new = (_typical([pair[side] for pair in rounds]) for side in (0, 1))
    rows = [
        ("bytes per sample", human_bytes(old.sample_bytes), human_bytes(new.sample_bytes)),
        ("decode the picture", f"{old.image_ms:.2f} ms", f"{new.image_ms:.2f} ms"),
        ("decode the arrays", f"{old.arrays_ms:.2f} ms", f"{new.arrays_ms:.2f} ms"),
    ]
    totals = [cost.image_ms + cost.arrays_ms for cost in (old, new)]
    rows.append(("samples/s per core", f"{1e3 / totals[0]:.0f}", f"{1e3 / totals[1]:.0f}"))
    factors = (
        old.sample_bytes / new.sample_bytes,
        old.image_ms / new.image_ms,
        old.arrays_ms / new.arrays_ms,
        totals[0] / totals[1],
    )
    full = [(*row, f"{factor:.1f}×") for row, factor in zip(rows, factors, strict=True)]
    numbers = ("as made", "packed", "better by")
    console.out.print(table("what packing did", ("", *numbers), full, right=numbers))


def _cost(shards: list[Path]) -> Cost:
    """Decode a few samples of each shard, one core, from memory."""
    images: list[float] = []
    arrays: list[float] = []
    sizes: list[int] = []
    for parts in _first_samples(shards, 4):
        images.append(_timed(partial(_decode_images, parts))[1])
        arrays.append(_timed(partial(_decode_arrays, parts))[1])
        sizes.append(sum(len(data) for _, data in parts))
    return Cost(sum(sizes) / len(sizes), median(images) * 1e3, median(arrays) * 1e3)


def _decode_images(parts: Parts) -> None:
    for suffix, data in parts:
        if codec_of(suffix) == "jpeg":
            decode_jpeg(data, min_height=1, min_width=IMAGE_SIZE)


def _decode_arrays(parts: Parts) -> None:
    """To memory of their own, as a batch would hold them: raw arrays are otherwise only looked at in place."""
    for suffix, data in parts:
        if codec_of(suffix) == "npz":
            for array in decode_npz(data).values():
                array.copy()
        elif codec_of(suffix) == "npy":
            decode_npy(data).copy()


def _first_samples(shards: list[Path], count: int) -> Iterator[Parts]:
    for path in shards:
        index = index_of(path)
        with open_shard(path) as shard:
            for number in range(min(count, len(index))):
                parts = index.sample(number).parts
                yield [(part.suffix, shard.read_at(part.offset, part.length)) for part in parts]


def _typical(costs: list[Cost]) -> Cost:
    return Cost(
        median(cost.sample_bytes for cost in costs),
        median(cost.image_ms for cost in costs),
        median(cost.arrays_ms for cost in costs),
    )


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def _say(step: str, what: str, seconds: float) -> None:
    console.out.print(f"{step:<16} {what}  ({seconds:.1f} s)", markup=False, highlight=False, soft_wrap=True)
