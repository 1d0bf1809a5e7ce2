"""The training of the field reports: a student network learns its teacher's features from tar shards.

    python train.py --shards shards/ --losses losses.json

The data code is that of the reports: each worker of torch's DataLoader streams every n-th shard with tarfile, keeps
parts until the sample is complete, and decodes with Pillow and np.load. Nothing is shuffled, so that the losses of two
runs can be compared: if every shard holds one batch, any number of workers delivers the same batches in the same order.

`--loader penstock` takes the batches from penstock.Loader instead: `from_penstock` replaces `TarStream`,
`_decode_image`, `_use_one_thread` and `from_tars`. Everything else stays.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
from collections.abc import Iterable, Iterator
from itertools import chain, cycle, islice, repeat
from math import inf
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = dict[str, Tensor]

PATCH = 16
"""Pixels per side that become one feature, as in the teacher network."""
SKIP = 2
"""The student is small: it uses every second pixel of every second row."""
WIDTH, FEATURES = 16, 256
MEAN, STD = 114.0, 58.0
"""Mean and standard deviation of the pixels."""
IMAGE, ARRAYS = ".jpg", "_features.npz"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# -- the data code of the field reports ---------------------------------------------------------------------------


class TarStream(IterableDataset[Batch]):
    """The samples of all shards, over and over, without an end."""

    def __init__(self, shards: list[Path], size: int) -> None:
        self.shards = shards
        self.size = size

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for shard in islice(cycle(self.shards), first, None, step):
            yield from self._samples(shard)

    def _samples(self, shard: Path) -> Iterator[Batch]:
        incomplete: dict[str, dict[str, bytes]] = {}
        with tarfile.open(shard, "r|*") as tar:
            for member in tar:
                suffix = ARRAYS if member.name.endswith(ARRAYS) else IMAGE
                key = member.name.removesuffix(suffix)
                file = tar.extractfile(member)
                assert file is not None
                parts = incomplete.setdefault(key, {})
                parts[suffix] = file.read()
                if len(parts) == 2:
                    yield self._decode(incomplete.pop(key))

    def _decode(self, parts: dict[str, bytes]) -> Batch:
        with np.load(io.BytesIO(parts[ARRAYS])) as arrays:
            features = torch.from_numpy(arrays["features"])
        return {"image": _decode_image(parts[IMAGE], self.size), "features": features}


def _decode_image(data: bytes, size: int) -> Tensor:
    """Resize the longer side to `size` and pad with black, as the images of the teacher were."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    scale = size / max(image.size)
    width, height = (round(side * scale) for side in image.size)
    pixels = np.zeros((size, size, 3), np.uint8)
    pixels[:height, :width] = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _use_one_thread(_worker: int) -> None:
    torch.set_num_threads(1)


def from_tars(args: argparse.Namespace) -> Iterable[Batch]:
    """Return the DataLoader of the field reports."""
    worker_settings = {"prefetch_factor": args.prefetch_factor, "persistent_workers": True} if args.num_workers else {}
    return DataLoader(
        TarStream(sorted(args.shards.glob("*.tar")), args.size),
        batch_size=args.batch_size,
        num_workers=args.num_workers,
        pin_memory=DEVICE == "cuda",
        worker_init_fn=_use_one_thread,
        **worker_settings,
    )


# -- the same from penstock.Loader --------------------------------------------------------------------------------


def from_penstock(args: argparse.Namespace) -> Iterable[Batch]:
    """Return the batches of penstock.Loader, epoch after epoch."""
    import penstock

    fields: dict[str, penstock.Image | penstock.Array] = {
        "image": penstock.Image(IMAGE, size=args.size, quality=args.quality),
        "features": penstock.Array(ARRAYS, key="features"),
    }
    loader = penstock.Loader(args.shards, fields, args.batch_size, device=DEVICE)
    return chain.from_iterable(repeat(loader))


# -- the training -------------------------------------------------------------------------------------------------


class Student(nn.Module):
    """A network that computes features from pixels, patch by patch."""

    def __init__(self) -> None:
        super().__init__()
        side = PATCH // SKIP
        self.layers = nn.Sequential(nn.Conv2d(3, WIDTH, side, side), nn.GELU(), nn.Conv2d(WIDTH, FEATURES, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features of a batch of images."""
        features: Tensor = self.layers(pixels[..., ::SKIP, ::SKIP].float().sub_(MEAN).div_(STD))
        return features


def train(batches: Iterable[Batch], seconds: float) -> list[float]:
    """Train and return the loss of every step; the time counts from the first batch."""
    torch.manual_seed(0)
    student = Student().to(DEVICE)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    losses: list[Tensor] = []
    end_s = inf
    for batch in batches:
        end_s = min(end_s, time.monotonic() + seconds)
        pixels, target = (batch[name].to(DEVICE, non_blocking=True) for name in ("image", "features"))
        loss = nn.functional.mse_loss(student(pixels), target.float())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())  # read at the end, since reading a loss waits for the device
        if time.monotonic() >= end_s:
            break
    return [float(loss) for loss in torch.stack(losses).tolist()]


def main() -> None:
    """Run the training from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--losses", type=Path, required=True, help="File for the loss of every step.")
    parser.add_argument("--loader", choices=("torch", "penstock"), default="torch")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument(
        "--quality", choices=("fast", "exact"), default="fast", help="Image quality of penstock.Loader."
    )
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--prefetch-factor", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # on a CPU, threads that wait for each other among busy workers make a step far longer
    batches = from_tars(args) if args.loader == "torch" else from_penstock(args)
    args.losses.write_text(json.dumps(train(batches, args.seconds)))


if __name__ == "__main__":
    main()
