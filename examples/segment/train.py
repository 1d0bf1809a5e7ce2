"""Segmentation of the ground, seen from above, from six cameras around a car: 16 bits, accumulated gradients.

    python -m examples.segment.train --data data/segment                   # add --toy on a machine without a GPU
    python -m examples.segment.train --data data/segment --before          # with the habits of field report 004
    python -m examples.segment.train --data data/segment --before batch    # with one of them

The first run makes synthetic data; everything is explained in examples/README.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import penstock
from examples.common.backbone import STRIDE, Backbone, Block
from examples.common.data import make_shards_once
from examples.common.habits import CopyingLoader, LogEveryStep, NormEveryStep
from examples.common.settings import DEVICE, SEED, Settings, TimeLimitedLoader, parse_arguments
from examples.segment.before import BeforeSettings, file_loader
from examples.segment.data import CAMERAS, DRIVE, GROUND
from penstock.train import Every, GradClip, Metrics, accumulate, precision

CONFIG = Path(__file__).with_name("config.yaml")
HABITS = ("loader", "copies", "batch", "precision", "clip", "log")


class Config(Settings, frozen=True):
    """The settings in config.yaml."""

    image: tuple[int, int]
    ground: int
    batch_size: int
    accumulate: int
    shuffle: bool
    precision: Literal["bf16", "fp16", "fp32"]
    loss_scale: float | Literal["dynamic"]
    before: BeforeSettings


class GroundSegmenter(nn.Module):
    """A network that projects every position of every camera's feature map to the ground with learned weights."""

    def __init__(self, settings: Config) -> None:
        super().__init__()
        self.backbone = Backbone(settings.width, settings.depth)
        positions = (settings.image[0] // STRIDE) * (settings.image[1] // STRIDE)
        projection = torch.randn(len(CAMERAS), positions, settings.ground**2)
        self.projection = nn.Parameter(projection / (len(CAMERAS) * positions) ** 0.5)
        self.block = Block(4 * settings.width)
        self.lines = nn.Conv2d(4 * settings.width, 1, 1)

    def forward(self, images: Tensor, size: int) -> Tensor:
        """Return a map of the given size from images of shape (batch, cameras, 3, height, width)."""
        features = self.backbone(images.flatten(0, 1))[-1].unflatten(0, images.shape[:2]).flatten(3)
        ground = torch.einsum("bncp,npg->bcg", features, self.projection)
        side = round(ground.shape[2] ** 0.5)
        lines = self.lines(self.block(ground.unflatten(2, (side, side))))
        return F.interpolate(lines.float(), size=size, mode="bilinear").squeeze(1)


def prepare(settings: Config, folder: Path) -> Path:
    """Return the shards; make them if there are none."""
    return make_shards_once(folder, DRIVE, settings)


def make_loader(settings: Config, shards: Path, habits: Collection[str] = ()) -> Iterable[dict[str, Any]]:
    """Return a loader of batches on the device."""
    size = (settings.before if "batch" in habits else settings).batch_size
    if "loader" in habits:
        workers = settings.before.workers
        plain = file_loader(shards, settings.image, shuffle=settings.shuffle, batch_size=size, workers=workers)
        return CopyingLoader(plain, DEVICE)
    images = {camera: penstock.Image(camera, size=settings.image, fit="crop") for camera in CAMERAS}
    loader = penstock.Loader(
        shards,
        fields={**images, "lines": penstock.Array(GROUND, key="lines")},
        batch_size=size,
        shuffle=settings.shuffle,
        seed=SEED,
        drop_last=True,
        device="cpu" if "copies" in habits else DEVICE,
    )
    return CopyingLoader(loader, DEVICE) if "copies" in habits else loader


def train(batches: Iterable[dict[str, Any]], settings: Config, habits: Collection[str] = ()) -> list[dict[str, float]]:
    """Train and return the losses as they were printed."""
    torch.manual_seed(SEED)
    model = GroundSegmenter(settings).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), settings.lr, fused=True)
    full = precision(model, "fp32")
    amp = full if "precision" in habits else precision(model, settings.precision, loss_scale=settings.loss_scale)
    clip = NormEveryStep(settings.max_norm) if "clip" in habits else GradClip(settings.max_norm)
    metrics = LogEveryStep() if "log" in habits else Metrics()
    due, printed = Every(settings.log_every), []
    steps = (settings.before if "batch" in habits else settings).accumulate

    for _ in range(settings.epochs):
        for batch, micro in accumulate(batches, steps, model):
            with micro:
                with amp.autocast():
                    lines = batch["lines"].float() / 255
                    logits = model(torch.stack([batch[camera] for camera in CAMERAS], 1), lines.shape[-1])
                    loss = F.binary_cross_entropy_with_logits(logits, lines)
                amp.backward(loss)
            metrics.add(loss=loss, lines=logits.detach().sigmoid().mean())
            if micro.last:
                amp.step(optimizer, clip)
                optimizer.zero_grad()
                if due():
                    print(metrics)
                    printed.append(metrics.means())
                    metrics.reset()
    return printed


def main() -> None:
    """Run the training from the command line."""
    run = parse_arguments(Config, CONFIG, HABITS, __doc__)
    shards = prepare(run.settings, run.data)
    loader = make_loader(run.settings, shards, run.habits)
    train(TimeLimitedLoader(loader, run.seconds), run.settings, run.habits)


if __name__ == "__main__":
    main()
