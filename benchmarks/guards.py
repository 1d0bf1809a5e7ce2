"""Measures the cost of the guards relative to the decoding that they protect, for three kinds of samples.

The guard and the decoding of the same sample are timed in turns, so that a busy machine slows both. Our codecs call the
guard themselves, so its time is subtracted from theirs. The target is a share under 5%.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock.shards.codecs import decode_jpeg, decode_npz, encode_jpeg, encode_npy
from penstock.shards.guards import inspect_jpeg, inspect_npy, inspect_zip
from penstock.testing.images import make_image

TARGET = 0.05
INNER_CALLS = 20
"""A guard takes microseconds, about as long as reading the clock, so several calls are timed together."""


@dataclass(frozen=True)
class Row:
    """Medians for one kind of sample."""

    sample: str
    size_bytes: int
    guard_s: float
    decode_s: float
    """Seconds to decode without the guard."""
    share: float
    """Guard time over decode time; at most TARGET is accepted."""


@dataclass(frozen=True)
class Sample:
    """A sample with the calls that check and decode it."""

    name: str
    parts: tuple[memoryview, ...]
    guard: Callable[[], object]
    decode: Callable[[], object]


def measure(rounds: int = 100, seed: int = 1) -> list[Row]:
    """Return one row for each kind of sample, each from so many rounds."""
    return [_measure(sample, rounds) for sample in (_sa1b(seed), _imagenet(seed), _reid(seed))]


def _measure(sample: Sample, rounds: int) -> Row:
    guard_s, decode_s = [], []
    for _ in range(rounds + 1):
        guard_s.append(_timed(sample.guard, INNER_CALLS))
        decode_s.append(_timed(sample.decode, 1))
    guard = statistics.median(guard_s[1:])
    decode = statistics.median(decode_s[1:]) - guard
    return Row(sample.name, sum(map(len, sample.parts)), guard, decode, guard / decode)


def _timed(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def _sa1b(seed: int) -> Sample:
    """Return a sample whose image is decoded as by a loader, reduced to a training size of 1024, and its features."""
    image, features = _jpeg(1500, 2250, 75, seed), _npz(seed)
    npy = encode_npy(decode_npz(features)["features"])

    def guard() -> None:
        inspect_jpeg(image)
        inspect_zip(features)
        inspect_npy(npy)

    def decode() -> None:
        decode_jpeg(image, divisor=2)
        decode_npz(features)

    return Sample("SA-1B-like (1500×2250 + 2 MB NPZ)", (image, features), guard, decode)


def _imagenet(seed: int) -> Sample:
    image = _jpeg(375, 500, 90, seed)
    return Sample("ImageNet-like (375×500)", (image,), lambda: inspect_jpeg(image), lambda: decode_jpeg(image))


def _reid(seed: int) -> Sample:
    image = _jpeg(256, 128, 75, seed)
    return Sample("ReID-like (256×128)", (image,), lambda: inspect_jpeg(image), lambda: decode_jpeg(image))


def _jpeg(height: int, width: int, quality: int, seed: int) -> memoryview:
    """Return a JPEG as a memoryview, the type of the views into the loader's arena."""
    return memoryview(encode_jpeg(make_image(height, width, seed), quality))


def _npz(seed: int) -> memoryview:
    """Return an NPZ with smooth features, so that deflate can compress them."""
    noise = np.random.default_rng(seed).normal(size=(256, 64, 64))
    out = io.BytesIO()
    np.savez_compressed(out, features=(np.cumsum(noise, axis=-1) / 8).astype(np.float16))
    return memoryview(out.getvalue())


def _show(rows: list[Row]) -> None:
    table = Table(title=f"Guard time as a share of decode time (target: under {TARGET:.0%})")
    for column in ("sample", "size", "guard", "decode", "share"):
        table.add_column(column, justify="left" if column == "sample" else "right")
    for row in rows:
        table.add_row(
            row.sample,
            f"{row.size_bytes / 1e3:.0f} kB",
            f"{row.guard_s * 1e6:.1f} µs",
            f"{row.decode_s * 1e3:.2f} ms",
            f"{row.share:.2%} {'ok' if row.share < TARGET else 'TOO MUCH'}",
        )
    Console().print(table)


def main() -> None:
    """Print the table, or the rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="rounds per kind of sample")
    parser.add_argument("--json", action="store_true", help="rows as JSON instead of a table")
    options = parser.parse_args()
    rows = measure(options.rounds)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _show(rows)


if __name__ == "__main__":
    main()
