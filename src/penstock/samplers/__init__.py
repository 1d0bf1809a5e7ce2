"""Batch samplers that use the metadata of each sample (P×K, weighted, balanced, by length), and the metadata reader."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.samplers.bucket import BucketSampler
    from penstock.samplers.metadata import read_metadata
    from penstock.samplers.pk import PKColumns, PKSampler
    from penstock.samplers.table import MetadataTable
    from penstock.samplers.weighted import BalancedSampler, WeightedSampler

__all__ = [
    "BalancedSampler",
    "BucketSampler",
    "MetadataTable",
    "PKColumns",
    "PKSampler",
    "WeightedSampler",
    "read_metadata",
]
_MODULES = {
    "BalancedSampler": "weighted",
    "BucketSampler": "bucket",
    "MetadataTable": "table",
    "PKColumns": "pk",
    "PKSampler": "pk",
    "WeightedSampler": "weighted",
    "read_metadata": "metadata",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'penstock.samplers' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"penstock.samplers.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
