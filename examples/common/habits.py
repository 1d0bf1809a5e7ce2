"""The habits of the field reports' training loops; each class replaces the helper that avoids the habit.

They are slow because the loop waits for the device: once for each copied tensor, each norm, each number.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from penstock.train import GradClip, Metrics

log = logging.getLogger("examples")


class CopyingLoader:
    """A loader that copies each batch when it is needed, while the loop waits; replaces a loader with a device."""

    def __init__(self, loader: Iterable[dict[str, Any]], device: str) -> None:
        self.loader = loader
        self.device = device

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            yield {name: each.to(self.device) for name, each in batch.items() if isinstance(each, Tensor)}


class NormEveryStep(GradClip):
    """A GradClip that fetches the norm of every gradient one by one, stores their norm, and then clips."""

    def __init__(self, max_norm: float) -> None:
        super().__init__(max_norm)
        self.max_norm = max_norm
        self.norms: list[float] = []

    def step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        """Clip the gradients of the optimizer's parameters and do its step."""
        if scaler is not None:
            scaler.unscale_(optimizer)
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        self.norms.append(sum(each.grad.norm(2).item() ** 2 for each in parameters) ** 0.5)
        nn.utils.clip_grad_norm_(parameters, self.max_norm)
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()


class LogEveryStep(Metrics):
    """Metrics that fetch every number at every step and write it to the log."""

    def __init__(self) -> None:
        super().__init__()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s")

    def add(self, weight: float = 1.0, **values: Tensor | float) -> None:
        """Add numbers, or tensors with one number each."""
        numbers = {name: value.item() if isinstance(value, Tensor) else value for name, value in values.items()}
        log.info(", ".join(f"{name}={value:.4f}" for name, value in numbers.items()))
        super().add(weight, **numbers)
