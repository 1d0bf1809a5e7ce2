"""Running means that stay on the device until they are read."""

from __future__ import annotations

from typing import Any

import torch

from penstock.errors import SettingError


class Metrics:
    """Running means: `metrics.add(loss=loss, accuracy=hits, weight=len(batch))` each step, `metrics.means()` to print.

    Adding does not wait for the device; all means are copied to the host at once. A NaN stays visible: the mean is NaN.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._weights: dict[str, float] = {}

    def add(self, weight: float = 1.0, **values: torch.Tensor | float) -> None:
        """Add numbers, or tensors of one number, each of which counts for `weight` samples."""
        if not weight > 0:
            raise SettingError(f"weight={weight} is not above 0")
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + _widened(name, value) * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def means(self) -> dict[str, float]:
        """Return the means of all that was added since the last `reset`; this waits for the device."""
        sums = _on_host(self._sums)
        return {name: sums[name] / weight for name, weight in self._weights.items()}

    def reset(self) -> None:
        """Forget all values, for example at the start of an epoch."""
        self._sums.clear()
        self._weights.clear()

    def __str__(self) -> str:
        return ", ".join(f"{name} {mean:.4g}" for name, mean in self.means().items())


def _widened(name: str, value: torch.Tensor | float) -> Any:
    """Return the value detached, and as float64, so that a long sum does not lose small values (float32 on MPS)."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.numel() != 1:
        raise SettingError(f"{name} has {value.numel()} numbers", advice="Give its mean")
    plain = value.detach().reshape(())
    return plain.float() if plain.device.type == "mps" else plain.double()


def _on_host(sums: dict[str, torch.Tensor | float]) -> dict[str, float]:
    tensors = {name: value for name, value in sums.items() if isinstance(value, torch.Tensor)}
    by_device: dict[torch.device, list[str]] = {}
    for name, value in tensors.items():
        by_device.setdefault(value.device, []).append(name)
    numbers = {name: value for name, value in sums.items() if not isinstance(value, torch.Tensor)}
    for names in by_device.values():
        numbers |= dict(zip(names, torch.stack([tensors[name] for name in names]).tolist(), strict=True))
    return numbers
