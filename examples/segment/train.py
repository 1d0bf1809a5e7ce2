"""A map of the ground, seen from above, out of six cameras around a car: 16 bits, gradients accumulated.

    python -m examples.segment.train --data data/segment                   # add --toy on a machine without a GPU
    python -m examples.segment.train --data data/segment --before          # with the habits of field report 004
    python -m examples.segment.train --data data/segment --before batch    # with one of them

The data is made up, at the first run; everything is explained in examples/README.md.
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
from examples.common.habits import Copied, LogEveryStep, NormEveryStep
from examples.common.material import shards_in
from examples.common.settings import DEVICE, SEED, Bounded, Settings, ask
from examples.segment.before import Before, file_loader
from examples.segment.data import CAMERAS, DRIVE, GROUND
from penstock.train import Every, GradClip, Metrics, accumulate, precision

CONFIG = Path(__file__).with_name("config.yaml")
HABITS = ("loader", "copies", "batch", "precision", "clip", "log")


class Config(Settings, frozen=True):
    """Of config.yaml."""

    image: tuple[int, int]
    ground: int
    batch_size: int
    accumulate: int
    shuffle: bool
    precision: Literal["bf16", "fp16", "fp32"]
    loss_scale: float | Literal["dynamic"]
    before: Before


class FromAbove(nn.Module):
    """Every place of every camera's picture is laid out on the ground, by weights that are learnt."""

    def __init__(self, settings: Config) -> None:
        super().__init__()
        self.backbone = Backbone(settings.width, settings.depth)
        places = (settings.image[0] // STRIDE) * (settings.image[1] // STRIDE)
        lay = torch.randn(len(CAMERAS), places, settings.ground**2)
        self.lay = nn.Parameter(lay / (len(CAMERAS) * places) ** 0.5)
        self.block = Block(4 * settings.width)
        self.lines = nn.Conv2d(4 * settings.width, 1, 1)

    def forward(self, pictures: Tensor, size: int) -> Tensor:
        """(batch, cameras, 3, height, width) to a map of that size."""
        seen = self.backbone(pictures.flatten(0, 1))[-1].unflatten(0, pictures.shape[:2]).flatten(3)
        ground = torch.einsum("bncp,npg->bcg", seen, self.lay)
        side = round(ground.shape[2] ** 0.5)
        lines = self.lines(self.block(ground.unflatten(2, (side, side))))
        return F.interpolate(lines.float(), size=size, mode="bilinear").squeeze(1)


def prepare(settings: Config, folder: Path) -> Path:
    """The shards."""
    return shards_in(folder, DRIVE, settings)


def make_loader(settings: Config, shards: Path, habits: Collection[str] = ()) -> Iterable[dict[str, Any]]:
    """Batches on the device."""
    size = (settings.before if "batch" in habits else settings).batch_size
    if "loader" in habits:
        workers = settings.before.workers
        plain = file_loader(shards, settings.image, shuffle=settings.shuffle, batch_size=size, workers=workers)
        return Copied(plain, DEVICE)
    pictures = {camera: penstock.Image(camera, size=settings.image, fit="crop") for camera in CAMERAS}
    loader = penstock.Loader(
        shards,
        fields={**pictures, "lines": penstock.Array(GROUND, key="lines")},
        batch_size=size,
        shuffle=settings.shuffle,
        seed=SEED,
        drop_last=True,
        device="cpu" if "copies" in habits else DEVICE,
    )
    return Copied(loader, DEVICE) if "copies" in habits else loader


def train(batches: Iterable[dict[str, Any]], settings: Config, habits: Collection[str] = ()) -> list[dict[str, float]]:
    """The losses as they were printed."""
    torch.manual_seed(SEED)
    model = FromAbove(settings).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), settings.lr, fused=True)
    in_full = precision(model, "fp32")
    amp = in_full if "precision" in habits else precision(model, settings.precision, loss_scale=settings.loss_scale)
    clip = NormEveryStep(settings.max_norm) if "clip" in habits else GradClip(settings.max_norm)
    metrics = LogEveryStep() if "log" in habits else Metrics()
    due, printed = Every(settings.log_every), []
    together = (settings.before if "batch" in habits else settings).accumulate

    for _ in range(settings.epochs):
        for batch, micro in accumulate(batches, together, model):
            with micro:
                with amp.autocast():
                    lines = batch["lines"].float() / 255
                    drawn = model(torch.stack([batch[camera] for camera in CAMERAS], 1), lines.shape[-1])
                    loss = F.binary_cross_entropy_with_logits(drawn, lines)
                amp.backward(loss)
            metrics.add(loss=loss, lines=drawn.detach().sigmoid().mean())
            if micro.last:
                amp.step(optimizer, clip)
                optimizer.zero_grad()
                if due():
                    print(metrics)
                    printed.append(metrics.means())
                    metrics.reset()
    return printed


def main() -> None:
    """As the command line says."""
    run = ask(Config, CONFIG, HABITS, __doc__)
    shards = prepare(run.settings, run.data)
    loader = make_loader(run.settings, shards, run.habits)
    train(Bounded(loader, run.seconds), run.settings, run.habits)


if __name__ == "__main__":
    main()
