"""Helpers for a cheap training step: prefetching, clipping, metrics, precision, accumulation, schedules."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.train.batch_size import accumulate, scale_lr
    from penstock.train.clip import GradClip
    from penstock.train.compiled import compile
    from penstock.train.metrics import Metrics
    from penstock.train.mixed_precision import precision
    from penstock.train.prefetch import Prefetcher, to_device
    from penstock.train.schedule import EvaluationBudget, Every, Throttle

__all__ = [
    "EvaluationBudget",
    "Every",
    "GradClip",
    "Metrics",
    "Prefetcher",
    "Throttle",
    "accumulate",
    "compile",
    "precision",
    "scale_lr",
    "to_device",
]
_MODULES = {
    "EvaluationBudget": "schedule",
    "Every": "schedule",
    "GradClip": "clip",
    "Metrics": "metrics",
    "Prefetcher": "prefetch",
    "Throttle": "schedule",
    "accumulate": "batch_size",
    "compile": "compiled",
    "precision": "mixed_precision",
    "scale_lr": "batch_size",
    "to_device": "prefetch",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'penstock.train' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"penstock.train.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
