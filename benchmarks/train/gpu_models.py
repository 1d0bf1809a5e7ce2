"""Models and batches for the GPU's benchmark, and how long a step of them takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from penstock.train import to_device

STEPS = 60
WARM_UP = 10
Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], torch.Tensor]


def convolutions() -> nn.Module:
    """Over pictures: as long to compute as to copy, or longer."""
    torch.manual_seed(0)
    sides = [(3, 32), (32, 64), (64, 128), (128, 256)]
    blocks = [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sides]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 64)).to("cuda")


class Transformer(nn.Module):
    """ViT-S/16: what precision and compiling change shows on a model of real size, 22 million weights."""

    def __init__(self, side: int = 224, patch: int = 16, width: int = 384, depth: int = 12, heads: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (side // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.label = nn.Linear(width, 64)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(pictures).flatten(2).transpose(1, 2) + self.places
        label: torch.Tensor = self.label(self.norm(self.blocks(tokens)).mean(1))
        return label


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return Transformer().to("cuda")


def layers() -> nn.Module:
    """Many small ones: what is lost by waiting for the GPU shows here."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(60)]
    return nn.Sequential(*blocks).to("cuda")


def pictures(count: int, *, pinned: bool) -> list[Batch]:
    """Eight batches in host memory, again and again."""
    torch.manual_seed(0)
    made = [{"image": torch.randn(64, 3, 224, 224), "label": torch.randint(64, (64,))} for _ in range(8)]
    if pinned:
        made = [{name: value.pin_memory() for name, value in batch.items()} for batch in made]
    return [made[number % len(made)] for number in range(count)]


def pictures_on_gpu() -> Batch:
    batch: Any = to_device(pictures(1, pinned=False)[0], "cuda")
    return batch


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["image"]).float(), batch["label"])


def timed(batches: Iterable[Batch], step: Step) -> float:
    """Seconds per step, without the first ones, up to when the GPU is done."""
    start, counted = 0.0, 0
    for number, batch in enumerate(batches):
        if number == WARM_UP:
            torch.cuda.synchronize()
            start = time.perf_counter()
        step(batch)
        counted += number >= WARM_UP
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / counted


def trained(step: Step) -> Callable[[], float]:
    """With data that is on the GPU already."""
    batch = {"x": torch.randn(64, 256, device="cuda")}
    return lambda: timed((batch for _ in range(STEPS)), step)
