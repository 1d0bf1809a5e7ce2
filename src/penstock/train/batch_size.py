"""Training with another effective batch size: accumulated gradients, and scaled learning rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from penstock.plan.batch_size import ScalingRule, scale_learning_rate
from penstock.samplers.epoch_batches import check_count


def accumulate(loader: Iterable[Any], n: int, model: torch.nn.Module) -> Iterator[tuple[Any, MicroBatch]]:
    """Yield batches in groups of n for one optimizer step each; the last group, even if the only one, may be shorter.

        for batch, micro in accumulate(loader, 4, model):
            with micro:
                loss = criterion(model(batch))
                loss.backward()
            if micro.last:
                optimizer.step()
                optimizer.zero_grad()

    At the end of a group the gradients are divided by the number of batches that it really had: all its batches count
    alike, and a group of two is not half a step. Under DDP, ranks exchange gradients once a group (`no_sync`). Inside a
    group the next batch is taken from the loader before the current one is computed; between two groups none is.
    """
    check_count(n=n)
    batches = iter(loader)
    batch = next(batches, _END)
    while batch is not _END:
        for index in range(n):
            following = next(batches, _END) if index + 1 < n else _UNKNOWN
            last = following is _END or index + 1 == n
            yield batch, MicroBatch(model, index + 1, last)
            if last:
                break
            batch = following
        batch = next(batches, _END) if following is _UNKNOWN else _END


_END, _UNKNOWN = object(), object()
"""Markers: no batch follows; it has not been tried whether one does."""


@dataclass(slots=True)
class MicroBatch:
    """One batch of a group: a context around its forward and backward pass."""

    model: torch.nn.Module
    count: int
    """Batches of the group so far, including this one."""
    last: bool
    """Whether the optimizer steps after this batch."""
    _unsynced: AbstractContextManager[Any] | None = None

    def __enter__(self) -> MicroBatch:
        no_sync = getattr(self.model, "no_sync", None)
        self._unsynced = no_sync() if no_sync is not None and not self.last else nullcontext()
        self._unsynced.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._unsynced is not None
        self._unsynced.__exit__(kind, error, trace)
        if error is None and self.last and self.count > 1:
            _divide([parameter.grad for parameter in self.model.parameters()], self.count)


@torch.no_grad()
def _divide(grads: Iterable[torch.Tensor | None], count: int) -> None:
    present = [grad for grad in grads if grad is not None]
    if present:
        torch._foreach_div_(present, count)


def scale_lr(
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    new_batch_size: int,
    *,
    rule: ScalingRule = "linear",
    dataset_size: int | None = None,
    warm_up_steps: int | None = None,
) -> LambdaLR:
    """Scale the optimizer's learning rates, which suit `batch_size`, to `new_batch_size`.

    Return a schedule whose `step()` is to be called at every step. Sizes are effective ones: over all ranks, and with
    accumulation. The rules are those of penstock.plan.batch_size: linear for SGD, sqrt for Adam and similar optimizers;
    a larger rate is reached over five epochs, or over `warm_up_steps`.
    """
    scaling = scale_learning_rate(
        1.0, batch_size, new_batch_size, rule=rule, dataset_size=dataset_size, warm_up_steps=warm_up_steps
    )
    return LambdaLR(optimizer, scaling.rate_at)
