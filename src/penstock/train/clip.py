"""Gradient clipping on the device: bounds gradients, records their norm, skips steps that would spoil the model.

Norms are computed of all gradients at once (`foreach`), the bound is applied by one multiplication of all of them, and
numbers are copied to the host only when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import torch

from penstock.errors import SettingError
from penstock.samplers.epoch_batches import check_count
from penstock.train.schedule import Every

MIN_NORMS = 20
"""Norms that must be known before an adaptive bound is computed from them."""
MAX_PENDING = 1024
"""Largest number of recorded norms that stay on the device."""


class GradClip:
    """Clips gradients: `clip.step(optimizer)` after `loss.backward()` clips, then steps if all gradients are finite.

    `max_norm` is a fixed bound. With `adaptive=0.9` the bound is the 90th percentile of the last `window` norms,
    computed again every `every` steps, and never above `max_norm` if that is given. `recorded` has the norm of every
    `every`-th step and `skipped` counts the skipped steps; only reading these waits for the device. There is one
    exception: an optimizer that is not fused (`fused=True`) cannot skip a step on the device, so each step waits for
    its norm.
    """

    def __init__(
        self, max_norm: float | None = None, *, adaptive: float | None = None, window: int = 1000, every: int = 100
    ) -> None:
        if max_norm is None and adaptive is None:
            raise SettingError("there is no bound to clip at", advice="Give max_norm, or adaptive, such as 0.9")
        if max_norm is not None and not max_norm > 0:
            raise SettingError(f"max_norm={max_norm} is not above 0")
        if adaptive is not None and not 0 < adaptive <= 1:
            raise SettingError(f"adaptive={adaptive} is not a fraction between 0 and 1")
        check_count(window=window, every=every)
        self._max_norm = float("inf") if max_norm is None else float(max_norm)
        self._quantile = adaptive
        self._window = window
        self._due = Every(every)
        self._steps = 0
        self._bound: torch.Tensor | None = None
        self._history: torch.Tensor | None = None
        self._bad: torch.Tensor | None = None
        self._pending: list[tuple[int, torch.Tensor]] = []
        self._recorded: list[tuple[int, float]] = []

    @torch.no_grad()
    def __call__(self, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
        """Clip the gradients of these parameters; return their norm before clipping, on the device."""
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not grads:
            raise SettingError("there is no gradient to clip", advice="Call it after backward()")
        groups = _by_device(grads)
        norm = _norm(groups)
        bound = self._bound_for(norm)
        factor = (bound / (norm + 1e-6)).clamp(max=1.0)
        for device, some in groups.items():
            torch._foreach_mul_(some, factor.to(device, non_blocking=True))
        self._record(norm, bound)
        return norm

    def step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        """Clip the optimizer's gradients, and let it step; the gradients of a scaler are unscaled first."""
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = self([parameter for group in optimizer.param_groups for parameter in group["params"]])
        if scaler is not None:
            scaler.step(optimizer)  # it checks the gradients itself
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            _step_if_finite(optimizer, norm)
        elif bool(torch.isfinite(norm)):
            optimizer.step()

    @property
    def recorded(self) -> list[tuple[int, float]]:
        """(step, norm) of every `every`-th step, from 0 on."""
        if self._pending:
            norms = torch.stack([norm for _, norm in self._pending]).tolist()
            self._recorded += zip((step for step, _ in self._pending), norms, strict=True)
            self._pending.clear()
        return list(self._recorded)

    @property
    def skipped(self) -> int:
        """Steps whose gradients were not finite."""
        return 0 if self._bad is None else int(self._bad)

    @property
    def bound(self) -> float:
        """The bound of the next step."""
        return self._max_norm if self._bound is None else float(self._bound)

    def _bound_for(self, norm: torch.Tensor) -> torch.Tensor:
        if self._bound is None:
            self._bound = torch.full_like(norm, self._max_norm)
            self._bad = torch.zeros_like(norm, dtype=torch.int64)
            self._history = norm.new_zeros(self._window)
        return self._bound

    def _record(self, norm: torch.Tensor, bound: torch.Tensor) -> None:
        assert self._bad is not None
        finite = torch.isfinite(norm)
        self._bad += ~finite
        due = self._due()
        if due:
            self._pending.append((self._steps, norm))
        if len(self._pending) >= MAX_PENDING:
            _ = self.recorded
        if self._quantile is not None:
            self._update_bound(torch.where(finite, norm, bound), due)
        self._steps += 1

    def _update_bound(self, norm: torch.Tensor, due: bool) -> None:
        """Add a norm to the history (a norm that is not finite counts as the bound), and compute the bound if due."""
        assert self._history is not None
        assert self._quantile is not None
        self._history[self._steps % self._window] = norm
        known = min(self._steps + 1, self._window)
        if due and known >= MIN_NORMS:
            quantile = self._history[:known].sort().values[ceil(self._quantile * known) - 1]
            self._bound = quantile.clamp(max=self._max_norm)


def _by_device(grads: Sequence[torch.Tensor]) -> dict[torch.device, list[torch.Tensor]]:
    groups: dict[torch.device, list[torch.Tensor]] = {}
    for grad in grads:
        groups.setdefault(grad.device, []).append(grad)
    return groups


def _norm(groups: dict[torch.device, list[torch.Tensor]]) -> torch.Tensor:
    first = next(iter(groups))
    norms = [torch.stack(torch._foreach_norm(some)) for some in groups.values()]  # on their own devices, in few calls
    total: torch.Tensor = torch.linalg.vector_norm(
        torch.cat([each.to(first, torch.float32, non_blocking=True) for each in norms])
    )
    return total


def _step_if_finite(optimizer: Any, norm: torch.Tensor) -> None:
    """Let a fused optimizer skip the step by a flag on the device, as GradScaler does."""
    optimizer.grad_scale, optimizer.found_inf = None, (~torch.isfinite(norm)).float()
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf
