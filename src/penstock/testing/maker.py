"""Shards and folders of made-up samples, in every member order that is met in the wild."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal, get_args

from penstock.errors import SettingError
from penstock.testing.presets import Preset
from penstock.testing.samples import sample_parts
from penstock.testing.tar_writer import Compression, write_tar

Order = Literal["adjacent", "interleaved", "grouped", "shuffled"]
Member = tuple[str, bytes]

_RUN = 2
"""Samples whose parts are interleaved: 0.jpg, 1.jpg, 0.npz, 1.npz."""


def make_shards(
    directory: str | os.PathLike[str],
    preset: Preset,
    *,
    samples: int,
    shards: int = 1,
    seed: int = 0,
    order: Order = "adjacent",
    compression: Compression | None = None,
    scale: float = 1.0,
) -> list[Path]:
    """Write `samples` samples, spread evenly over `shards` tar files; same arguments, same bytes.

    adjacent: a.jpg a.npz b.jpg b.npz; interleaved: the same, two samples at a time; grouped: all .jpg,
    then all .npz; shuffled: any member anywhere. Every order holds the same samples in the same shards.
    One shard at a time is held in memory; files of the same names are replaced.
    """
    if not 1 <= shards <= samples:
        raise SettingError(f"{samples} samples cannot fill {shards} shards")
    if order not in get_args(Order):
        raise SettingError(f"order {order!r} is not known", advice=f"Use one of {', '.join(get_args(Order))}")
    if compression is not None and compression not in get_args(Compression):
        raise SettingError(f"compression {compression!r} is not known", advice="Use None, 'gz' or 'zst'")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    extension = ".tar" if compression is None else f".tar.{compression}"
    paths = []
    for shard in range(shards):
        numbers = range(samples * shard // shards, samples * (shard + 1) // shards)
        members = [list(each) for each in _make(preset, numbers, seed, scale)]
        path = folder / f"{preset.name}-{shard:06d}{extension}"
        write_tar(path, _ordered(members, order, Random(f"{seed}/{shard}")), compression)
        paths.append(path)
    return paths


def make_folder(
    directory: str | os.PathLike[str], preset: Preset, *, samples: int, seed: int = 0, scale: float = 1.0
) -> Path:
    """The same samples as loose files, as datasets lie before they are packed."""
    if samples < 1:
        raise SettingError(f"a folder of {samples} samples cannot be made")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for members in _make(preset, range(samples), seed, scale):
        for name, data in members:
            (folder / name).write_bytes(data)
    return folder


def _make(preset: Preset, numbers: range, seed: int, scale: float) -> Iterator[list[Member]]:
    """The members of each sample, in order; encoding and deflating leave the GIL, so threads help."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        made = pool.map(partial(sample_parts, preset, seed=seed, scale=scale), numbers)
        for number, parts in zip(numbers, made, strict=True):
            yield [(preset.key(number) + suffix, data) for suffix, data in parts.items()]


def _ordered(samples: Sequence[Sequence[Member]], order: Order, rng: Random) -> list[Member]:
    """All members of a shard, as that order has them lie."""
    if order == "interleaved":
        return [member for at in range(0, len(samples), _RUN) for member in _by_part(samples[at : at + _RUN])]
    if order == "grouped":
        return _by_part(samples)
    members = [member for parts in samples for member in parts]
    if order == "shuffled":
        rng.shuffle(members)
    return members


def _by_part(samples: Sequence[Sequence[Member]]) -> list[Member]:
    """First parts of all the samples, then their second parts, and so on."""
    return [member for parts in zip(*samples, strict=True) for member in parts]
