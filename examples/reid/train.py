"""Person re-identification across modalities and cameras: batches of P people × K crops, triplet and ID loss.

    python -m examples.reid.train --data data/reid                     # add --toy on a machine without a GPU
    python -m examples.reid.train --data data/reid --before            # with the habits of field report 003
    python -m examples.reid.train --data data/reid --before sampler    # with one of them

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
from examples.reid.before import BeforeSettings, crop_loader, crops_in, uncached_sampler
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
    """The settings in config.yaml."""

    people: int
    identities: int
    instances: int
    embedding: int
    margin: float
    precision: Literal["bf16", "fp16", "fp32"]
    compiled: bool
    before: BeforeSettings


class Embedder(nn.Module):
    """A network from a crop to an embedding, and to logits over the people of the training."""

    def __init__(self, settings: Config) -> None:
        super().__init__()
        self.backbone = Backbone(settings.width, settings.depth)
        self.embed = nn.Linear(4 * settings.width, settings.embedding)
        self.classify = nn.Linear(settings.embedding, settings.people)

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings and the logits of a batch of crops."""
        embedding = self.embed(self.backbone(crops)[-1].mean((2, 3)))
        return embedding, self.classify(embedding)


def triplet_loss(embeddings: Tensor, identities: Tensor, margin: float) -> Tensor:
    """Return the triplet loss with the farthest crop of the same person and the nearest one of another person."""
    distances = torch.cdist(embeddings, embeddings)
    same = identities[:, None] == identities
    farthest = distances.masked_fill(~same, 0).amax(1)
    nearest = distances.masked_fill(same, float("inf")).amin(1)
    return F.relu(farthest - nearest + margin).mean()


class Losses(nn.Module):
    """The model and its losses as one module, so that they are compiled together."""

    def __init__(self, embedder: Embedder, margin: float) -> None:
        super().__init__()
        self.embedder = embedder
        self.margin = margin

    def forward(self, crops: Tensor, identities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return triplet loss, ID loss, and the mean norm of the embeddings."""
        embeddings, logits = self.embedder(crops)
        triplet = triplet_loss(embeddings.float(), identities, self.margin)
        identity = F.cross_entropy(logits.float(), identities, label_smoothing=0.1)
        return triplet, identity, embeddings.detach().norm(dim=1).mean()


def prepare(settings: Config, folder: Path) -> Path:
    """Return the shards; make them if there are none."""
    return make_shards_once(folder, crops(settings.people), settings)


def make_loader(settings: Config, shards: Path, habits: Collection[str] = ()) -> Iterable[dict[str, Any]]:
    """Return a loader of batches on the device."""
    people = settings.identities, settings.instances
    if "sampler" in habits:
        sampler: Any = uncached_sampler(crops_in(shards), *people)
    else:
        metadata = read_metadata(ShardDataset(shards, FIELDS), ".json")  # read once, then cached
        sampler = PKSampler(metadata, *people, ensure="rgb", prefer_complete=True, seed=SEED)
    if "loader" in habits:
        return CopyingLoader(crop_loader(crops_in(shards), sampler, settings.before), DEVICE)
    device = "cpu" if "copies" in habits else DEVICE
    loader = penstock.Loader(shards, FIELDS, batch_sampler=sampler, device=device)
    return CopyingLoader(loader, DEVICE) if "copies" in habits else loader


def train(batches: Iterable[dict[str, Any]], settings: Config, habits: Collection[str] = ()) -> list[dict[str, float]]:
    """Train and return the losses as they were printed."""
    torch.manual_seed(SEED)
    model = Losses(Embedder(settings), settings.margin).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), settings.lr, fused=True)
    amp = precision(model, settings.precision)
    # with batches of 32 small crops, launching all kernels one by one takes longer than running them
    losses = compile(model, mode="reduce-overhead") if settings.compiled and "eager" not in habits else model
    clip = NormEveryStep(settings.max_norm) if "clip" in habits else GradClip(settings.max_norm)
    metrics = LogEveryStep() if "log" in habits else Metrics()
    due, printed = Every(settings.log_every), []

    for _ in range(settings.epochs):
        for batch in batches:
            with amp.autocast():
                triplet, identity, norm = losses(batch["image"], batch["identity"])
                loss = triplet + identity
            amp.backward(loss)
            amp.step(optimizer, clip)
            optimizer.zero_grad()
            metrics.add(loss=loss, triplet=triplet, identity=identity, norm=norm)
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
