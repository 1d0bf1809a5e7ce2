"""A map-style dataset of JPEG files, and the extra work per sample by which faults make it slow."""

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
"""Batch size."""
SIDE = 160
"""Width and height of the images in pixels; decoding one takes 0.15 ms of a core."""
IMAGES = 64
"""Number of different images."""
WORKERS = 2
"""Default number of workers of a loader."""

ExtraWork = Callable[[int], object]
"""Work for a sample besides reading and decoding it; the argument is the index of the sample."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Extra work that uses no core, such as waiting for a disk or a network."""

    seconds: float

    def __call__(self, index: int) -> None:
        """Sleep, unless the time is 0."""
        if self.seconds > 0:
            time.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Decode:
    """Extra work that decodes an image repeatedly until the thread has spent `cpu_s` seconds of CPU time on it."""

    data: bytes
    cpu_s: float

    def __call__(self, index: int) -> None:
        """Decode by the thread's CPU clock, so that fast and slow cores are busy for the same time."""
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            simplejpeg.decode_jpeg(self.data)


@dataclass(frozen=True, slots=True)
class Both:
    """Extra work that is `first` followed by `second`."""

    first: ExtraWork
    second: ExtraWork

    def __call__(self, index: int) -> None:
        self.first(index)
        self.second(index)


@dataclass(frozen=True, slots=True)
class ImageDataset:
    """Map-style dataset: for each sample the extra work is done, then a JPEG file is read and decoded."""

    files: tuple[Path, ...]
    length: int
    extra: ExtraWork | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        if self.extra is not None:
            self.extra(index)
        return decode_corner(self.files[index % len(self.files)].read_bytes())


def decode_corner(data: bytes) -> NDArray[np.uint8]:
    """Decode an image and return its top left corner, so that sending batches to the main process costs little."""
    return np.ascontiguousarray(simplejpeg.decode_jpeg(data)[:32, :32])


def image_dataset(case: Case, extra: ExtraWork | None = None) -> ImageDataset:
    """Return a dataset with as many samples as the steps of the case need."""
    return ImageDataset(image_files(case.folder), case.steps * BATCH, extra)


def loader(dataset: Any, **settings: Any) -> DataLoader[Any]:
    """Return a plain DataLoader; the default is batches of `BATCH` samples and `WORKERS` workers."""
    return DataLoader(dataset, **{"batch_size": BATCH, "num_workers": WORKERS, **settings})


def image_files(folder: Path, count: int = IMAGES, side: int = SIDE) -> tuple[Path, ...]:
    """Return JPEG files of square images, and make those that are missing."""
    files = tuple(folder / f"images-{side}" / f"{number:04d}.jpg" for number in range(count))
    for number, file in enumerate(files):
        if not file.exists():
            _write(file, iter([jpeg(side, number)]), sync=False)
    return files


def jpeg(side: int, seed: int) -> bytes:
    """Return an encoded square image."""
    return bytes(simplejpeg.encode_jpeg(make_image(side, side, seed), quality=85))


def noise_file(folder: Path, size_bytes: int, name: str = "noise") -> Path:
    """Return a file of random bytes, which cannot be compressed; make it on the disk if it is missing."""
    file = folder / f"{name}-{size_bytes}.bin"
    if not file.exists():
        rng = np.random.default_rng(size_bytes)
        piece = 1 << 20
        _write(file, (rng.bytes(min(piece, size_bytes - start)) for start in range(0, size_bytes, piece)), sync=True)
    return file


def _write(file: Path, pieces: Iterator[bytes], sync: bool) -> None:
    """Write a file under a temporary name and rename it when it is complete, since runs share the folder.

    sync: flush it to the disk, so that it can be dropped from the page cache.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    with draft.open("wb") as out:
        out.writelines(pieces)
        if sync:
            out.flush()
            os.fsync(out.fileno())
    draft.replace(file)
