"""SPDL as its documentation shows it: one thread reads shards, and several threads each decode a whole batch.

A task is a whole batch, because SPDL's event loop takes longer for a task than a small image takes to decode. Its own
decoders are FFmpeg for images and a C++ reader for NPZ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import spdl.io
from numpy.typing import NDArray
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.decode import (
    Tensors,
    assemble,
    decode_batch_with_penstock,
    empty_batch,
    with_keys,
    write_planes,
)
from benchmarks.peers.kinds import Kind
from benchmarks.peers.task import Batch, MakeBatches, Task
from penstock import Image

Sample = tuple[str, dict[str, memoryview]]


def prepare(task: Task) -> MakeBatches:
    decode = partial(_decode_with_spdl if task.decoder == "own" else _decode_with_penstock, task.kind)

    def make_batches() -> Iterator[Batch]:
        pipeline = (
            PipelineBuilder()
            .add_source(_read(task))
            .pipe(decode, concurrency=task.workers)
            .add_sink(2 * task.workers)
            .build(num_threads=task.workers + 1, max_failures=0, use_thread_output_queue=True)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return make_batches


def _read(task: Task) -> Iterator[list[Sample]]:
    """Yield batches of undecoded samples."""
    batch: list[Sample] = []
    parts: dict[str, memoryview] = {}
    for shard in task.shards:
        for member, view in spdl.io.iter_tarfile(Path(shard).read_bytes()):
            key, suffix = task.kind.split(member)
            parts[suffix] = view
            if len(parts) == len(task.kind.suffixes):
                batch.append((key, parts))
                parts = {}
            if len(batch) == task.batch_size:
                yield batch
                batch = []
    if batch:
        yield batch


def _decode_with_penstock(kind: Kind, batch: list[Sample]) -> Tensors:
    return with_keys([key for key, _ in batch], decode_batch_with_penstock(kind, [parts for _, parts in batch]))


def _decode_with_spdl(kind: Kind, batch: list[Sample]) -> Tensors:
    out = empty_batch(kind, len(batch))
    images = _images(kind, [bytes(parts.pop(".jpg")) for _, parts in batch])
    for place, ((_, parts), pixels) in enumerate(zip(batch, images, strict=True)):
        write_planes(pixels, out["image"][place])
        values = {suffix: _open_part(suffix, data) for suffix, data in parts.items()}
        for name, array in assemble(kind, values).items():
            out[name][place] = array
    return with_keys([key for key, _ in batch], out)


def _images(kind: Kind, jpegs: list[bytes]) -> Iterable[NDArray[np.uint8]]:
    buffer = spdl.io.load_image_batch(jpegs, width=None, height=None, filter_desc=_filter(kind.image))
    return spdl.io.to_numpy(buffer)  # type: ignore[no-any-return]


def _filter(field: Image) -> str:
    """Return the FFmpeg filter for the field's size and fit."""
    height, width = (field.size, field.size) if isinstance(field.size, int) else field.size or (0, 0)
    scale, target = f"scale=w={width}:h={height}:flags=bilinear", f"w={width}:h={height}"
    steps = {
        "pad": f"{scale}:force_original_aspect_ratio=decrease,pad={target}:x=0:y=0:color=black,",
        "crop": f"{scale}:force_original_aspect_ratio=increase,crop={target},",
        "stretch": f"{scale},",
    }
    return steps[field.fit] + "format=pix_fmts=rgb24"


def _open_part(suffix: str, data: memoryview) -> Any:
    return spdl.io.load_npz(data) if suffix.endswith(".npz") else json.loads(bytes(data))
