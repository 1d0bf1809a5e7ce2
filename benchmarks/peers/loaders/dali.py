"""DALI's CPU pipeline, only with its own decoder, because its operators decode the images.

If the parts of a sample differ only in their extension, DALI's own tar reader reads them, with indexes made before the
run. That reader cannot pair `1.jpg` with `1_features.npz` and cannot open an NPZ. For such shards DALI's parallel
external source is used: it has as many Python workers as DALI has threads, which read both parts by offset and open the
NPZ with numpy.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from benchmarks.peers.data import converted
from benchmarks.peers.decode import assemble, with_keys
from benchmarks.peers.task import Batch, MakeBatches, Task
from penstock import Array, Image, RandomResizedCrop

PREFETCH = 3


def prepare(task: Task) -> MakeBatches:
    if task.decoder != "own":
        raise SystemExit("DALI's CPU operators cannot call our decode functions")
    native = all(suffix.startswith(".") and suffix != ".npz" for suffix in task.kind.suffixes)
    return partial(_own_reader, task, _indexes(task)) if native else partial(_external, task, PairReader(task))


def _own_reader(task: Task, indexes: list[str]) -> Iterator[Batch]:
    notes = [suffix for suffix in task.kind.suffixes if suffix != ".jpg"]
    pipeline = Pipeline(task.batch_size, task.workers, None, prefetch_queue_depth=PREFETCH)
    with pipeline:
        jpeg, *others = fn.readers.webdataset(
            paths=task.shards,
            index_paths=indexes,
            ext=[suffix.removeprefix(".") for suffix in (".jpg", *notes)],
            missing_component_behavior="error",
            name="reader",
        )
        origin = fn.get_property(jpeg, key="source_info")
        pipeline.set_outputs(_pixels(task.kind.image, jpeg), origin, *others)
    pipeline.build()
    for _ in range(pipeline.epoch_size("reader") // task.batch_size):
        pixels, origins, *raw = pipeline.run()
        # an origin has the form path:offset:member
        keys = [task.kind.split(bytes(origins.at(i)).decode().rpartition(":")[2])[0] for i in range(len(origins))]
        opened = [
            {suffix: json.loads(bytes(part.at(i))) for suffix, part in zip(notes, raw, strict=True)}
            for i in range(len(keys))
        ]
        yield _batch(task, keys, pixels, opened)


def _batch(task: Task, keys: list[str], pixels: Any, notes: list[dict[str, Any]]) -> Batch:
    """Return the batch: the images in DALI's own memory, as its torch plugin returns them, and the labels.

    The labels are parsed here, because DALI cannot parse them.
    """
    rows = [assemble(task.kind, values) for values in notes]
    labels = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {**with_keys(keys, labels), "image": torch.from_dlpack(pixels.as_tensor())}


def _external(task: Task, read: PairReader) -> Iterator[Batch]:
    pipeline = Pipeline(task.batch_size, task.workers, None, prefetch_queue_depth=PREFETCH, py_num_workers=task.workers)
    names = [name for name in task.kind.outputs if name != "image"]
    with pipeline:
        jpeg, number, *arrays = fn.external_source(
            read, num_outputs=2 + len(names), batch=False, parallel=True, prefetch_queue_depth=PREFETCH
        )
        pipeline.set_outputs(_pixels(task.kind.image, jpeg), number, *arrays)
    pipeline.build()
    for _ in range(len(read.samples) // task.batch_size):
        pixels, number, *arrays = (torch.from_dlpack(output.as_tensor()) for output in pipeline.run())
        keys = [read.samples[at][0] for at in number.flatten().tolist()]
        yield {"__key__": keys, "image": pixels, **dict(zip(names, arrays, strict=True))}


def _pixels(field: Image, jpeg: Any) -> Any:
    """Decode the JPEG, resize it as the field declares, and separate the colour planes.

    The interpolation is bilinear without antialiasing, which is faster. A random crop is fused with the decoder, which
    then decodes little more than the window.
    """
    height, width = field.sides
    if isinstance(field.crop, RandomResizedCrop):
        pixels = fn.decoders.image_random_crop(
            jpeg,
            device="cpu",
            output_type=types.RGB,
            use_fast_idct=True,
            random_area=list(field.crop.scale),
            random_aspect_ratio=list(field.crop.ratio),
            num_attempts=10,
        )
        pixels = fn.resize(pixels, size=(height, width), interp_type=types.INTERP_LINEAR, antialias=False)
        mirror = fn.random.coin_flip(probability=field.flip)
        return fn.crop_mirror_normalize(pixels, mirror=mirror, dtype=types.UINT8, output_layout="CHW")
    mode = {"pad": "not_larger", "crop": "not_smaller", "stretch": "default"}[field.fit]
    middle = 0.5 if field.fit == "crop" else 0.0
    pixels = fn.decoders.image(jpeg, device="cpu", output_type=types.RGB, use_fast_idct=True)
    pixels = fn.resize(pixels, size=(height, width), mode=mode, interp_type=types.INTERP_LINEAR, antialias=False)
    return fn.crop_mirror_normalize(
        pixels,
        crop=(height, width),
        crop_pos_x=middle,
        crop_pos_y=middle,
        out_of_bounds_policy="pad",
        dtype=types.UINT8,
        output_layout="CHW",
    )


class PairReader:
    """Reads a sample by its number, in DALI's Python workers: the encoded JPEG, the number, the arrays of the NPZ."""

    def __init__(self, task: Task) -> None:
        self._npz = next(suffix for suffix in task.kind.suffixes if suffix.endswith(".npz"))
        self._arrays = [field.key for field in task.kind.fields.values() if isinstance(field, Array)]
        self._files: dict[str, int] = {}
        self.samples = [sample for shard in task.shards for sample in _locate_samples(task, shard)]

    def __call__(self, sample: Any) -> tuple[NDArray[Any], ...]:
        if sample.idx_in_epoch >= len(self.samples):
            raise StopIteration
        _, shard, parts = self.samples[sample.idx_in_epoch]
        opened = np.load(io.BytesIO(self._read(shard, *parts[self._npz])))
        jpeg = np.frombuffer(self._read(shard, *parts[".jpg"]), np.uint8)
        return jpeg, np.array([sample.idx_in_epoch]), *(opened[name] for name in self._arrays)

    def _read(self, shard: str, offset: int, length: int) -> bytes:
        if shard not in self._files:
            self._files[shard] = os.open(shard, os.O_RDONLY)
        return os.pread(self._files[shard], length, offset)


def _locate_samples(task: Task, shard: str) -> Iterator[tuple[str, str, dict[str, tuple[int, int]]]]:
    """Yield (key, shard, (offset, length) by suffix) of every sample. DALI's own reader has its indexes for this."""
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    with tarfile.open(shard, "r:") as tar:
        for member in tar:
            key, suffix = task.kind.split(member.name)
            samples.setdefault(key, {})[suffix] = (member.offset_data, member.size)
    for key, parts in samples.items():
        yield key, shard, parts


def _indexes(task: Task) -> list[str]:
    """Return the paths of the shards' indexes, which DALI's own tool makes."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for shard in task.shards:
            tool = Path(sys.executable).with_name("wds2idx")
            subprocess.run([tool, shard, folder / Path(shard).name], check=True, stdout=subprocess.DEVNULL)

    folder = converted(task.shards, "dali", make)
    return [str(folder / Path(shard).name) for shard in task.shards]
