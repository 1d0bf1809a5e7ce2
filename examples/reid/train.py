"""People are found again in other light and by other cameras: batches of P people × K crops, triplet and ID loss.

    python -m examples.reid.train --data data/reid                     # add --toy on a machine without a GPU
    python -m examples.reid.train --data data/reid --before            # with the habits of field report 003
    python -m examples.reid.train --data data/reid --before sampler    # with one of them

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
from examples.common.backbone import Backbone
from examples.common.habits import Copied, LogEveryStep, NormEveryStep
from examples.common.material import shards_in
from examples.common.settings import DEVICE, SEED, Bounded, Settings, ask
from examples.reid.before import Before, crop_loader, crops_in, uncached_sampler
from examples.reid.data import crops
from penstock.datasets import ShardDataset
from penstock.samplers import PKSampler, read_metadata
from penstock.train import Every, GradClip, Metrics, compile, precision

CONFIG = Path(__file__).with_name("config.yaml")
HABITS = ("sampler", "loader", "copies", "eager", "clip", "log")
FIELDS: dict[str, penstock.Image | penstock.Label] = {
    "image": penstock.Image(".jpg", size=(256, 128), fit="stretch"),
    "identity": penstock.Label(".json", key="identity"),
}


class Config(Settings, frozen=True):
    """Of config.yaml."""

    people: int
    identities: int
    instances: int
    embedding: int
    margin: float
    precision: Literal["bf16", "fp16", "fp32"]
    compiled: bool
    before: Before


class Embedder(nn.Module):
    """A crop to a point, near those of the same person; and who it is, out of the people seen in training."""

    def __init__(self, settings: Config) -> None:
        super().__init__()
        self.backbone = Backbone(settings.width, settings.depth)
        self.point = nn.Linear(4 * settings.width, settings.embedding)
        self.who = nn.Linear(settings.embedding, settings.people)

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Of a batch."""
        point = self.point(self.backbone(crops)[-1].mean((2, 3)))
        return point, self.who(point)


def triplet_loss(points: Tensor, identities: Tensor, margin: float) -> Tensor:
    """With the farthest crop of the same person and the nearest of another one."""
    apart = torch.cdist(points, points)
    same = identities[:, None] == identities
    farthest = apart.masked_fill(~same, 0).amax(1)
    nearest = apart.masked_fill(same, float("inf")).amin(1)
    return F.relu(farthest - nearest + margin).mean()


class Losses(nn.Module):
    """All that is computed of a batch before the gradients: to a compiler, one thing."""

    def __init__(self, embedder: Embedder, margin: float) -> None:
        super().__init__()
        self.embedder = embedder
        self.margin = margin

    def forward(self, crops: Tensor, identities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Triplet and ID loss, and how far points lie from the middle."""
        points, logits = self.embedder(crops)
        triplet = triplet_loss(points.float(), identities, self.margin)
        who = F.cross_entropy(logits.float(), identities, label_smoothing=0.1)
        return triplet, who, points.detach().norm(dim=1).mean()


def prepare(settings: Config, folder: Path) -> Path:
    """The shards."""
    return shards_in(folder, crops(settings.people), settings)


def make_loader(settings: Config, shards: Path, habits: Collection[str] = ()) -> Iterable[dict[str, Any]]:
    """Batches on the device."""
    people = settings.identities, settings.instances
    if "sampler" in habits:
        sampler: Any = uncached_sampler(crops_in(shards), *people)
    else:
        known = read_metadata(ShardDataset(shards, FIELDS), ".json")  # read once, then kept
        sampler = PKSampler(known, *people, ensure="rgb", prefer_complete=True, seed=SEED)
    if "loader" in habits:
        return Copied(crop_loader(crops_in(shards), sampler, settings.before), DEVICE)
    device = "cpu" if "copies" in habits else DEVICE
    loader = penstock.Loader(shards, FIELDS, batch_sampler=sampler, device=device)
    return Copied(loader, DEVICE) if "copies" in habits else loader


def train(batches: Iterable[dict[str, Any]], settings: Config, habits: Collection[str] = ()) -> list[dict[str, float]]:
    """The losses as they were printed."""
    torch.manual_seed(SEED)
    model = Losses(Embedder(settings), settings.margin).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), settings.lr, fused=True)
    amp = precision(model, settings.precision)
    # 32 small crops keep a GPU busy for less time than it takes to ask for all kernels one by one
    losses = compile(model, mode="reduce-overhead") if settings.compiled and "eager" not in habits else model
    clip = NormEveryStep(settings.max_norm) if "clip" in habits else GradClip(settings.max_norm)
    metrics = LogEveryStep() if "log" in habits else Metrics()
    due, printed = Every(settings.log_every), []

    for _ in range(settings.epochs):
        for batch in batches:
            with amp.autocast():
                triplet, who, length = losses(batch["image"], batch["identity"])
                loss = triplet + who
            amp.backward(loss)
            amp.step(optimizer, clip)
            optimizer.zero_grad()
            metrics.add(loss=loss, triplet=triplet, identity=who, length=length)
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
