"""Models and batches for the benchmark of helpers on a GPU, and the timing of training steps."""

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
    """Return a network over images whose step takes at least as long as copying a batch."""
    torch.manual_seed(0)
    sides = [(3, 32), (32, 64), (64, 128), (128, 256)]
    blocks = [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sides]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 64)).to("cuda")


class Transformer(nn.Module):
    """ViT-S/16 with 22 million weights: the effects of precision and compiling show on a model of realistic size."""

    def __init__(self, side: int = 224, patch: int = 16, width: int = 384, depth: int = 12, heads: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        logits: torch.Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return Transformer().to("cuda")


def many_small_layers() -> nn.Module:
    """Return a network with so many short kernels that waiting for the GPU shows in the time of a step."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(60)]
    return nn.Sequential(*blocks).to("cuda")


def image_batches(count: int, *, pinned: bool) -> list[Batch]:
    """Return batches in host memory; eight different ones repeat."""
    torch.manual_seed(0)
    batches = [{"image": torch.randn(64, 3, 224, 224), "label": torch.randint(64, (64,))} for _ in range(8)]
    if pinned:
        batches = [{name: value.pin_memory() for name, value in batch.items()} for batch in batches]
    return [batches[number % len(batches)] for number in range(count)]


def image_batch_on_gpu() -> Batch:
    batch: Any = to_device(image_batches(1, pinned=False)[0], "cuda")
    return batch


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["image"]).float(), batch["label"])


def time_steps(batches: Iterable[Batch], step: Step) -> float:
    """Return the seconds per step after WARM_UP steps; the time ends when the GPU has finished."""
    start, counted = 0.0, 0
    for number, batch in enumerate(batches):
        if number == WARM_UP:
            torch.cuda.synchronize()
            start = time.perf_counter()
        step(batch)
        counted += number >= WARM_UP
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / counted


def timed_training(step: Step) -> Callable[[], float]:
    """Return a function that trains on a batch in GPU memory and returns the seconds per step."""
    batch = {"x": torch.randn(64, 256, device="cuda")}
    return lambda: time_steps((batch for _ in range(STEPS)), step)
