"""Small helpers for anybody's training loop: samplers that know their samples, and a step that costs little."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.train.accumulation import accumulate
    from penstock.train.bucket import BucketSampler
    from penstock.train.clip import GradClip
    from penstock.train.compiling import compile
    from penstock.train.evaluation import EvaluationBudget
    from penstock.train.learning import scale_lr
    from penstock.train.metadata import read_metadata
    from penstock.train.metrics import Metrics
    from penstock.train.pace import Every, Throttle
    from penstock.train.pk import PKColumns, PKSampler
    from penstock.train.precise import precision
    from penstock.train.prefetch import Prefetcher
    from penstock.train.table import MetadataTable
    from penstock.train.transfer import to_device
    from penstock.train.weighted import BalancedSampler, WeightedSampler

__all__ = [
    "BalancedSampler", "BucketSampler", "EvaluationBudget", "Every", "GradClip", "MetadataTable", "Metrics",
    "PKColumns", "PKSampler", "Prefetcher", "Throttle", "WeightedSampler", "accumulate", "compile", "precision",
    "read_metadata", "scale_lr", "to_device",
]  # fmt: skip
_ROOMS = {
    "BalancedSampler": "weighted",
    "BucketSampler": "bucket",
    "EvaluationBudget": "evaluation",
    "Every": "pace",
    "GradClip": "clip",
    "MetadataTable": "table",
    "Metrics": "metrics",
    "PKColumns": "pk",
    "PKSampler": "pk",
    "Prefetcher": "prefetch",
    "Throttle": "pace",
    "WeightedSampler": "weighted",
    "accumulate": "accumulation",
    "compile": "compiling",
    "precision": "precise",
    "read_metadata": "metadata",
    "scale_lr": "learning",
    "to_device": "transfer",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first asked for: samplers do without torch."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'penstock.train' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"penstock.train.{_ROOMS[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
