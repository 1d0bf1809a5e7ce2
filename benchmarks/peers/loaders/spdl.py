"""SPDL as its documentation has it: a thread reads shards, several threads each decode a whole batch.

Whole batches per task, because its event loop costs more than a small picture. Its own decoders are FFmpeg's for
pictures and its C++ reader for NPZ.
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

from benchmarks.peers.decode import Tensors, assemble, empty_batch, our_batch, split_into, with_keys
from benchmarks.peers.kinds import Kind
from benchmarks.peers.task import Batch, MakeBatches, Task
from penstock import Image

Sample = tuple[str, dict[str, memoryview]]


def prepare(task: Task) -> MakeBatches:
    decode = partial(_own_batch, task.kind) if task.decoder == "own" else partial(_our_batch, task.kind)

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
    """Batches of undecoded samples."""
    batch: list[Sample] = []
    held: dict[str, memoryview] = {}
    for shard in task.shards:
        for member, view in spdl.io.iter_tarfile(Path(shard).read_bytes()):
            key, suffix = task.kind.split(member)
            held[suffix] = view
            if len(held) == len(task.kind.suffixes):
                batch.append((key, held))
                held = {}
            if len(batch) == task.batch_size:
                yield batch
                batch = []
    if batch:
        yield batch


def _our_batch(kind: Kind, batch: list[Sample]) -> Tensors:
    return with_keys([key for key, _ in batch], our_batch(kind, [parts for _, parts in batch]))


def _own_batch(kind: Kind, batch: list[Sample]) -> Tensors:
    out = empty_batch(kind, len(batch))
    pictures = _pictures(kind, [bytes(parts.pop(".jpg")) for _, parts in batch])
    for at, ((_, parts), pixels) in enumerate(zip(batch, pictures, strict=True)):
        split_into(pixels, out["image"][at])
        values = {suffix: _opened(suffix, data) for suffix, data in parts.items()}
        for name, array in assemble(kind, values).items():
            out[name][at] = array
    return with_keys([key for key, _ in batch], out)


def _pictures(kind: Kind, jpegs: list[bytes]) -> Iterable[NDArray[np.uint8]]:
    buffer = spdl.io.load_image_batch(jpegs, width=None, height=None, filter_desc=_filter(kind.image))
    return spdl.io.to_numpy(buffer)  # type: ignore[no-any-return]


def _filter(field: Image) -> str:
    """FFmpeg's words for the field's size and fit."""
    height, width = (field.size, field.size) if isinstance(field.size, int) else field.size or (0, 0)
    scale, into = f"scale=w={width}:h={height}:flags=bilinear", f"w={width}:h={height}"
    steps = {
        "pad": f"{scale}:force_original_aspect_ratio=decrease,pad={into}:x=0:y=0:color=black,",
        "crop": f"{scale}:force_original_aspect_ratio=increase,crop={into},",
        "stretch": f"{scale},",
    }
    return steps[field.fit] + "format=pix_fmts=rgb24"


def _opened(suffix: str, data: memoryview) -> Any:
    return spdl.io.load_npz(data) if suffix.endswith(".npz") else json.loads(bytes(data))
