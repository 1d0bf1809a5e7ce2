"""Running means that stay on the device until somebody looks at them."""

from __future__ import annotations

from typing import Any

import torch

from penstock.errors import SettingError


class Metrics:
    """`metrics.add(loss=loss, accuracy=hits, weight=len(batch))` at every step; `metrics.means()` when it is printed.

    Adding does not wait for the device; all means are fetched in one copy. A NaN stays visible: the mean is NaN.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._weights: dict[str, float] = {}

    def add(self, weight: float = 1.0, **values: torch.Tensor | float) -> None:
        """Numbers, or tensors of one number, each standing for `weight` samples."""
        if not weight > 0:
            raise SettingError(f"weight={weight} is not above 0")
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + _wide(name, value) * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def means(self) -> dict[str, float]:
        """Over all that was added since the last `reset`; this is where the loop waits for the device."""
        sums = _fetched(self._sums)
        return {name: sums[name] / weight for name, weight in self._weights.items()}

    def reset(self) -> None:
        """Begin again, for instance with an epoch."""
        self._sums.clear()
        self._weights.clear()

    def __str__(self) -> str:
        return ", ".join(f"{name} {mean:.4g}" for name, mean in self.means().items())


def _wide(name: str, value: torch.Tensor | float) -> Any:
    """Detached, and wide enough that a long sum does not lose the small ones."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.numel() != 1:
        raise SettingError(f"{name} has {value.numel()} numbers", advice="Give its mean")
    plain = value.detach().reshape(())
    return plain.float() if plain.device.type == "mps" else plain.double()


def _fetched(sums: dict[str, torch.Tensor | float]) -> dict[str, float]:
    there = {name: value for name, value in sums.items() if isinstance(value, torch.Tensor)}
    by_device: dict[torch.device, list[str]] = {}
    for name, value in there.items():
        by_device.setdefault(value.device, []).append(name)
    here = {name: value for name, value in sums.items() if not isinstance(value, torch.Tensor)}
    for names in by_device.values():
        here |= dict(zip(names, torch.stack([there[name] for name in names]).tolist(), strict=True))
    return here
