"""Several batches for one step of the optimizer, their gradients averaged, however many the last group has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from penstock.samplers.epoch_batches import check_count


def accumulate(loader: Iterable[Any], n: int, model: torch.nn.Module) -> Iterator[tuple[Any, MicroBatch]]:
    """Batches in groups of n; the last group is as long as the loader makes it, even if that is all there is.

        for batch, micro in accumulate(loader, 4, model):
            with micro:
                loss = criterion(model(batch))
                loss.backward()
            if micro.last:
                optimizer.step()
                optimizer.zero_grad()

    When the last of a group is done, the gradients are divided by how many batches it really had: each batch counts
    alike, and a group of two is not half a step. Under DDP, ranks exchange gradients once a group (`no_sync`). Inside a
    group the next batch is taken from the loader before this one is computed; between two groups none is.
    """
    check_count(n=n)
    batches = iter(loader)
    batch = next(batches, _END)
    while batch is not _END:
        for place in range(n):
            following = next(batches, _END) if place + 1 < n else _ASK
            last = following is _END or place + 1 == n
            yield batch, MicroBatch(model, place + 1, last)
            if last:
                break
            batch = following
        batch = next(batches, _END) if following is _ASK else _END


_END, _ASK = object(), object()
"""No batch follows; whether one does has not been asked."""


@dataclass(slots=True)
class MicroBatch:
    """One batch of a group: a context around its forward and backward pass."""

    model: torch.nn.Module
    count: int
    """Batches of the group so far, this one included."""
    last: bool
    """Whether the optimizer is to step after it."""
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
    there = [grad for grad in grads if grad is not None]
    if there:
        torch._foreach_div_(there, count)
