"""The loader of field reports 000 and 001: streamed tar files, parts in a dict, Pillow, np.load, two workers."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Sample = dict[str, Tensor]
T = TypeVar("T")


class BeforeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings that the report's script used, whatever its command line requested."""

    workers: int
    prefetch: int
    shuffle_buffer: int


class StreamingTarDataset(IterableDataset[Sample]):
    """Samples of tar shards: each worker streams every n-th shard and draws from a buffer of decoded samples."""

    def __init__(self, shard_files: Sequence[Path], input_size: int, shuffle_buffer: int) -> None:
        self.shard_files = shard_files
        self.input_size = input_size
        self.shuffle_buffer = shuffle_buffer

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        my_shards = list(self.shard_files if worker is None else self.shard_files[worker.id :: worker.num_workers])
        samples = (sample for shard in self._shuffled(my_shards) for sample in self._parse_tar_content(shard))
        buffer: list[Sample] = []
        for sample in samples:
            buffer.append(sample)
            if len(buffer) >= self.shuffle_buffer:
                yield buffer.pop(np.random.randint(len(buffer)))
        yield from self._shuffled(buffer)

    def _shuffled(self, items: list[T]) -> list[T]:
        if self.shuffle_buffer > 1:
            np.random.shuffle(items)
        return items

    def _parse_tar_content(self, tar_path: Path) -> Iterator[Sample]:
        cache: dict[str, dict[str, bytes]] = {}
        with tarfile.open(tar_path, "r|*") as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                kind = "npz" if member.name.endswith("_features.npz") else "img"
                parts = cache.setdefault(member.name.removesuffix("_features.npz").removesuffix(".jpg"), {})
                parts[kind] = file.read()
                if len(parts) == 2:
                    yield self._process_sample(parts)
                    parts.clear()

    def _process_sample(self, parts: dict[str, bytes]) -> Sample:
        arrays = np.load(io.BytesIO(parts["npz"]))
        return {
            "image": self._image(parts["img"]),
            "features": torch.from_numpy(arrays["features"]),
            "edge": torch.from_numpy(arrays["edge"]),
        }

    def _image(self, data: bytes) -> Tensor:
        """Resize the longer side to the input size and pad with black."""
        image = Image.open(io.BytesIO(data)).convert("RGB")
        scale = self.input_size / max(image.size)
        width, height = (round(side * scale) for side in image.size)
        pixels = np.zeros((self.input_size, self.input_size, 3), np.uint8)
        pixels[:height, :width] = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def tar_loader(
    shards: Path, input_size: int, batch_size: int, *, shuffle: bool, before: BeforeSettings
) -> DataLoader[Sample]:
    """Return the report's DataLoader with the arguments of its script."""
    files = sorted(shards.glob("*.tar"))
    return DataLoader(
        StreamingTarDataset(files, input_size, before.shuffle_buffer if shuffle else 1),
        batch_size=batch_size,
        num_workers=before.workers,
        prefetch_factor=before.prefetch if before.workers else None,
        persistent_workers=before.workers > 0,
        pin_memory=torch.cuda.is_available(),
        drop_last=True,
        worker_init_fn=_loader_worker_init,
    )


def _loader_worker_init(_worker: int) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
