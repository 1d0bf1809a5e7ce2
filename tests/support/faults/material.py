"""Real files for the trainings to load, and a dataset over them to which a fault adds its part."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from penstock.testing.images import make_image
from tests.support.faults.fault import Case

BATCH = 8
SIDE = 160
"""Of the pictures, in pixels: decoding one takes a core 0.15 ms."""
PICTURES = 64
WORKERS = 2

Extra = Callable[[int], object]
"""What is done for a sample besides reading and decoding it; the index is the sample's."""


@dataclass(frozen=True, slots=True)
class Wait:
    """For something that takes no core: a disk, a network."""

    seconds: float

    def __call__(self, index: int) -> None:
        """Zero waits not at all."""
        if self.seconds > 0:
            time.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Decode:
    """The picture decoded again and again until the thread has spent so much CPU time on it."""

    data: bytes
    cpu_s: float

    def __call__(self, index: int) -> None:
        """The same work on a fast and on a slow core, by the clock that counts cores."""
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            simplejpeg.decode_jpeg(self.data)


@dataclass(frozen=True, slots=True)
class Both:
    """One extra, then another."""

    first: Extra
    second: Extra

    def __call__(self, index: int) -> None:
        """In that order."""
        self.first(index)
        self.second(index)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Map-style: each sample is a JPEG file, read and decoded, and then whatever the fault does."""

    files: tuple[Path, ...]
    length: int
    extra: Extra | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        if self.extra is not None:
            self.extra(index)
        return decoded(self.files[index % len(self.files)].read_bytes())


def decoded(data: bytes) -> NDArray[np.uint8]:
    """Its top left corner, so that handing batches over costs little."""
    return np.ascontiguousarray(simplejpeg.decode_jpeg(data)[:32, :32])


def pictures(case: Case, extra: Extra | None = None) -> Pictures:
    """As many as the steps of the case need."""
    return Pictures(picture_files(case.folder), case.steps * BATCH, extra)


def loader(dataset: Any, **settings: Any) -> DataLoader[Any]:
    """A plain DataLoader, with two workers unless told otherwise."""
    return DataLoader(dataset, **{"batch_size": BATCH, "num_workers": WORKERS, **settings})


def picture_files(folder: Path, count: int = PICTURES, side: int = SIDE) -> tuple[Path, ...]:
    """JPEG files, made where they are missing."""
    files = tuple(folder / f"pictures-{side}" / f"{number:04d}.jpg" for number in range(count))
    for number, file in enumerate(files):
        if not file.exists():
            _write(file, iter([jpeg(side, number)]), safely=False)
    return files


def jpeg(side: int, seed: int) -> bytes:
    """One square picture."""
    return bytes(simplejpeg.encode_jpeg(make_image(side, side, seed), quality=85))


def noise_file(folder: Path, size_bytes: int, name: str = "noise") -> Path:
    """A file that no compression shrinks, safely on the disk, made where it is missing."""
    file = folder / f"{name}-{size_bytes}.bin"
    if not file.exists():
        rng = np.random.default_rng(size_bytes)
        piece = 1 << 20
        _write(file, (rng.bytes(min(piece, size_bytes - at)) for at in range(0, size_bytes, piece)), safely=True)
    return file


def _write(file: Path, pieces: Iterator[bytes], safely: bool) -> None:
    """Under its name only when it is whole, since runs share the folder; safely: on the disk, not in memory only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    with draft.open("wb") as out:
        out.writelines(pieces)
        if safely:
            out.flush()
            os.fsync(out.fileno())
    draft.replace(file)
