"""Helpers for a cheap training step: copies beside the step, clipping, metrics, precision, accumulation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.train.accumulation import accumulate
    from penstock.train.clip import GradClip
    from penstock.train.compiled import compile
    from penstock.train.evaluation import EvaluationBudget
    from penstock.train.every import Every, Throttle
    from penstock.train.learning_rate import scale_lr
    from penstock.train.metrics import Metrics
    from penstock.train.mixed_precision import precision
    from penstock.train.prefetch import Prefetcher
    from penstock.train.transfer import to_device

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
    "EvaluationBudget": "evaluation",
    "Every": "every",
    "GradClip": "clip",
    "Metrics": "metrics",
    "Prefetcher": "prefetch",
    "Throttle": "every",
    "accumulate": "accumulation",
    "compile": "compiled",
    "precision": "mixed_precision",
    "scale_lr": "learning_rate",
    "to_device": "transfer",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'penstock.train' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"penstock.train.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
