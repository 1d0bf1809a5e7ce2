"""Makes the small datasets that the trainings read. A dataset is made once per folder and kept."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Maker = Callable[[Path], None]
WORDS = (
    "the a of network loader batch worker tensor gradient steps, learning rate. decays with time; and disk reads slow"
)


def ready(make: Maker, name: str, folder: Path) -> Path:
    """Return the folder of a dataset; make it if it is not there."""
    target = folder / name
    if not (target / ".complete").exists():
        target.mkdir(parents=True, exist_ok=True)
        make(target)
        (target / ".complete").touch()
    return target


def photo(height: int, width: int, seed: int) -> Image.Image:
    """Return an image with large shapes and a little noise, so that it compresses like a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    noise = rng.integers(-8, 8, (height, width, 1), dtype=np.int16)
    return Image.fromarray(np.clip(np.asarray(coarse, np.int16) + noise, 0, 255).astype(np.uint8))


def images(count: int, height: int, width: int, suffix: str = "jpg", huge: int = 0) -> Maker:
    """Four classes of images; so many of them have 12 megapixels."""

    def make(target: Path) -> None:
        every = count // huge if huge else count + 1
        for i in range(count):
            size = (3000, 4000) if i % every == every // 2 else (height, width)
            path = target / f"class{i % 4}" / f"{i:05d}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            photo(*size, seed=i).save(path)

    return make


def rows(count: int, features: int) -> Maker:
    """One file of float32 rows, for a memmap."""

    def make(target: Path) -> None:
        rng = np.random.default_rng(0)
        with open(target / "rows.f32", "wb") as file:
            for _ in range(0, count, 4096):
                file.write(rng.random((4096, features), np.float32).tobytes())

    return make


def sentences(count: int, words: int) -> Maker:
    """A CSV file of sentences and labels."""

    def make(target: Path) -> None:
        rng = random.Random(0)
        with open(target / "train.csv", "w", newline="") as file:
            out = csv.writer(file)
            for i in range(count):
                out.writerow([" ".join(rng.choices(WORDS.split(), k=words)), i % 4])

    return make


def lines(files: int, per_file: int, words: int) -> Maker:
    """Gzip files of lines of text."""

    def make(target: Path) -> None:
        rng = random.Random(1)
        for number in range(files):
            with gzip.open(target / f"part{number}.txt.gz", "wt", compresslevel=1) as file:
                file.writelines(" ".join(rng.choices(WORDS.split(), k=words)) + "\n" for _ in range(per_file))

    return make


def database(target: Path) -> None:
    """Make a SQLite table of 2000 JSON records, and a counter."""
    rng = np.random.default_rng(2)
    with sqlite3.connect(target / "records.db") as db:
        db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, features TEXT, label INTEGER)")
        db.execute("CREATE TABLE uses (n INTEGER)")
        db.execute("INSERT INTO uses VALUES (0)")
        for i in range(2000):
            db.execute("INSERT INTO records VALUES (?, ?, ?)", (i, json.dumps(rng.random(64).tolist()), i % 4))


def scans(count: int, size: int, chunk: int) -> Maker:
    """Images and masks in one HDF5 file, deflated in chunks of so many images."""

    def make(target: Path) -> None:
        import h5py  # a GPU machine, whose bench uses other parts of this module, may lack it

        with h5py.File(target / "scans.h5", "w") as file:
            kept = {"shape": (count, size, size), "dtype": "u1", "chunks": (chunk, size, size), "compression": "gzip"}
            image, mask = file.create_dataset("image", **kept), file.create_dataset("mask", **kept)
            pixels = np.stack([np.asarray(photo(size, size, i))[..., 0] for i in range(count)])
            image[:], mask[:] = pixels, (pixels > 128).astype(np.uint8)

    return make


def tars(sizes: tuple[int, ...], height: int, width: int) -> Maker:
    """Tar shards with so many samples each."""

    def make(target: Path) -> None:
        number = 0
        for shard, samples in enumerate(sizes):
            with tarfile.open(target / f"shard-{shard:03d}.tar", "w") as tar:
                for _ in range(samples):
                    encoded = io.BytesIO()
                    photo(height, width, number % 64).save(encoded, "jpeg")
                    _add(tar, f"{number:06d}.jpg", encoded.getvalue())
                    _add(tar, f"{number:06d}.cls", str(number % 10).encode())
                    number += 1

    return make


def arrays(folders: int, per_folder: int) -> Maker:
    """Folders a, b, … of arrays of 64×64 floats."""

    def make(target: Path) -> None:
        rng = np.random.default_rng(3)
        for folder in "abcdefgh"[:folders]:
            (target / folder).mkdir(exist_ok=True)
            for i in range(per_folder):
                np.save(target / folder / f"{i:04d}.npy", rng.random((64, 64), np.float32))

    return make


def both(**makers: Maker) -> Maker:
    """Several datasets in subfolders of one."""

    def make(target: Path) -> None:
        for name, each in makers.items():
            (target / name).mkdir(exist_ok=True)
            each(target / name)

    return make


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
