"""What the reports' loops do at every step, each in the place of the helper that does without.

They cost what they cost because the loop waits for the device: once for each tensor copied, each norm, each number.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from penstock.train import GradClip, Metrics

log = logging.getLogger("examples")


class Copied:
    """Instead of a loader with a device: a batch is copied when its turn has come, and the loop waits for it."""

    def __init__(self, loader: Iterable[dict[str, Any]], device: str) -> None:
        self.loader = loader
        self.device = device

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            yield {name: each.to(self.device) for name, each in batch.items() if isinstance(each, Tensor)}


class NormEveryStep(GradClip):
    """Instead of GradClip: the norm of every gradient is fetched, one by one, and noted; then all are clipped."""

    def __init__(self, max_norm: float) -> None:
        super().__init__(max_norm)
        self.max_norm = max_norm
        self.norms: list[float] = []

    def step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        """Clip what the optimizer has, and let it step."""
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
    """Instead of Metrics: every number is fetched at every step, and written to the log."""

    def __init__(self) -> None:
        super().__init__()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s")

    def add(self, weight: float = 1.0, **values: Tensor | float) -> None:
        """Numbers, or tensors of one number."""
        here = {name: value.item() if isinstance(value, Tensor) else value for name, value in values.items()}
        log.info(", ".join(f"{name}={value:.4f}" for name, value in here.items()))
        super().add(weight, **here)
