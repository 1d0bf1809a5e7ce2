"""Makes tar shards and folders of generated samples, in every member order that real shards have."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import IO, Literal, cast, get_args

from penstock.errors import SettingError
from penstock.shards.codecs.zstd import ZstdFile
from penstock.testing.presets import Preset
from penstock.testing.samples import sample_parts

Order = Literal["adjacent", "interleaved", "grouped", "shuffled"]
Compression = Literal["gz", "zst"]
Member = tuple[str, bytes]

_INTERLEAVED = 2
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
    """Write `samples` samples, spread evenly over `shards` tar files; the same arguments give the same bytes.

    adjacent: a.jpg a.npz b.jpg b.npz; interleaved: the same, two samples at a time; grouped: all .jpg, then all .npz;
    shuffled: members in random order. Every order has the same samples in the same shards. One shard at a time is held
    in memory; files of the same names are replaced.
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
        members = [list(sample) for sample in _make_samples(preset, numbers, seed, scale)]
        path = folder / f"{preset.name}-{shard:06d}{extension}"
        write_tar(path, _in_order(members, order, Random(f"{seed}/{shard}")), compression)
        paths.append(path)
    return paths


def make_folder(
    directory: str | os.PathLike[str], preset: Preset, *, samples: int, seed: int = 0, scale: float = 1.0
) -> Path:
    """Write the same samples as loose files, like a dataset before it is packed."""
    if samples < 1:
        raise SettingError(f"a folder of {samples} samples cannot be made")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for members in _make_samples(preset, range(samples), seed, scale):
        for name, data in members:
            (folder / name).write_bytes(data)
    return folder


def _make_samples(preset: Preset, numbers: range, seed: int, scale: float) -> Iterator[list[Member]]:
    """Yield the members of each sample, in order, made by threads: encoding and compressing release the GIL."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        made = pool.map(partial(sample_parts, preset, seed=seed, scale=scale), numbers)
        for number, parts in zip(numbers, made, strict=True):
            yield [(preset.key(number) + suffix, data) for suffix, data in parts.items()]


def _in_order(samples: Sequence[Sequence[Member]], order: Order, rng: Random) -> list[Member]:
    """Return all members of a shard in that order."""
    if order == "interleaved":
        starts = range(0, len(samples), _INTERLEAVED)
        return [member for start in starts for member in _by_part(samples[start : start + _INTERLEAVED])]
    if order == "grouped":
        return _by_part(samples)
    members = [member for parts in samples for member in parts]
    if order == "shuffled":
        rng.shuffle(members)
    return members


def _by_part(samples: Sequence[Sequence[Member]]) -> list[Member]:
    """Return the first parts of all samples, then their second parts, and so on."""
    return [member for parts in zip(*samples, strict=True) for member in parts]


def tar_bytes(members: Iterable[Member]) -> bytes:
    """Return a plain tar of these (name, data) in this order; long names are stored as by GNU tar.

    It has no time, user or host in it, so the same members give the same bytes.
    """
    buffer = io.BytesIO()
    _write(buffer, members)
    return buffer.getvalue()


def write_tar(path: Path, members: Iterable[Member], compression: Compression | None) -> None:
    """Write the same tar into a file, member by member, compressed as a whole if requested."""
    with path.open("wb") as file:
        if compression is None:
            _write(file, members)
        elif compression == "gz":
            with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0) as compressed:
                _write(cast(IO[bytes], compressed), members)
        else:
            with ZstdFile(file, mode="wb", level=1) as compressed:
                _write(cast(IO[bytes], compressed), members)


def _write(file: IO[bytes], members: Iterable[Member]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
