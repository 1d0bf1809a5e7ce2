"""A small student network learns its teacher's features and edges, streamed from tar shards.

    python -m examples.distill.train --data data/distill                  # add --toy on a machine without a GPU
    python -m examples.distill.train --data data/distill --before         # with the habits of field reports 000 and 001
    python -m examples.distill.train --data data/distill --before clip    # with one of them

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
from examples.common.backbone import Backbone
from examples.common.data import make_shards_once
from examples.common.habits import CopyingLoader, LogEveryStep, NormEveryStep
from examples.common.settings import DEVICE, SEED, Settings, TimeLimitedLoader, parse_arguments
from examples.distill.before import BeforeSettings, tar_loader
from penstock.testing import SA1B
from penstock.train import Every, GradClip, Metrics, precision

CONFIG = Path(__file__).with_name("config.yaml")
HABITS = ("loader", "copies", "precision", "clip", "log")
FEATURES = 256


class Config(Settings, frozen=True):
    """The settings in config.yaml."""

    image: int
    batch_size: int
    shuffle: bool
    precision: Literal["bf16", "fp16", "fp32"]
    before: BeforeSettings


class Student(nn.Module):
    """A network that computes features at a stride of 16, like the teacher, and edges at a stride of 4."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.backbone = Backbone(width, depth)
        self.features = nn.Conv2d(4 * width, FEATURES, 1)
        self.edges = nn.Conv2d(width, 1, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and edges of a batch of images."""
        fine, _, coarse = self.backbone(images)
        return self.features(coarse), self.edges(fine).squeeze(1)


def prepare(settings: Config, folder: Path) -> Path:
    """Return the shards; make them if there are none."""
    return make_shards_once(folder, SA1B, settings)


def make_loader(settings: Config, shards: Path, habits: Collection[str] = ()) -> Iterable[dict[str, Any]]:
    """Return a loader of batches on the device."""
    if "loader" in habits:
        size = settings.image, settings.batch_size
        return CopyingLoader(tar_loader(shards, *size, shuffle=settings.shuffle, before=settings.before), DEVICE)
    loader = penstock.Loader(
        shards,
        fields={
            "image": penstock.Image(".jpg", size=settings.image),
            "features": penstock.Array("_features.npz", key="features"),
            "edge": penstock.Array("_features.npz", key="edge"),
        },
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        seed=SEED,
        drop_last=True,
        device="cpu" if "copies" in habits else DEVICE,
    )
    return CopyingLoader(loader, DEVICE) if "copies" in habits else loader


def train(batches: Iterable[dict[str, Any]], settings: Config, habits: Collection[str] = ()) -> list[dict[str, float]]:
    """Train and return the losses as they were printed."""
    torch.manual_seed(SEED)
    student = Student(settings.width, settings.depth).to(DEVICE)
    optimizer = torch.optim.AdamW(student.parameters(), settings.lr, fused=True)
    amp = precision(student, "fp32" if "precision" in habits else settings.precision)
    clip = NormEveryStep(settings.max_norm) if "clip" in habits else GradClip(settings.max_norm)
    metrics = LogEveryStep() if "log" in habits else Metrics()
    due, printed = Every(settings.log_every), []

    for _ in range(settings.epochs):
        for batch in batches:
            with amp.autocast():
                features, edges = student(batch["image"])
                feature_loss = F.mse_loss(features.float(), batch["features"].float())
                edge_loss = F.binary_cross_entropy_with_logits(edges.float(), batch["edge"].float() / 255)
                loss = feature_loss + edge_loss
            amp.backward(loss)
            amp.step(optimizer, clip)
            optimizer.zero_grad()
            metrics.add(loss=loss, features=feature_loss, edges=edge_loss)
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
