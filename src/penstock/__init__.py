"""Penstock keeps a GPU supplied with data: it loads shards, records where time goes, and explains every stall."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.data.fields import (
        Array,
        Boxes,
        Field,
        Geometry,
        GpuTransform,
        Image,
        Json,
        Label,
        Mask,
        RandomResizedCrop,
        Raw,
        Text,
    )
    from penstock.dataloader import DataLoader
    from penstock.loader import Loader
    from penstock.options import CacheOptions, EngineOptions, ErrorOptions, ReadOptions
    from penstock.probe.step import probe_step
    from penstock.train.mix import CutMix, MixUp
    from penstock.tuner.adaptive.loader import AdaptiveLoader
    from penstock.tuner.plan_for import plan_for
    from penstock.tuner.tune import tune
    from penstock.watcher.watch import watch

__all__ = [
    "AdaptiveLoader", "Array", "Boxes", "CacheOptions", "CutMix", "DataLoader", "EngineOptions", "ErrorOptions",
    "Field", "Geometry", "GpuTransform", "Image", "Json", "Label", "Loader", "Mask", "MixUp", "RandomResizedCrop",
    "Raw", "ReadOptions", "Text",
    "plan_for", "probe_step", "tune", "watch",
]  # fmt: skip
__version__ = "0.1.0.dev0"
_MODULES = {
    "AdaptiveLoader": "penstock.tuner.adaptive.loader",
    "CacheOptions": "penstock.options",
    "CutMix": "penstock.train.mix",
    "DataLoader": "penstock.dataloader",
    "EngineOptions": "penstock.options",
    "ErrorOptions": "penstock.options",
    "Loader": "penstock.loader",
    "MixUp": "penstock.train.mix",
    "ReadOptions": "penstock.options",
    "plan_for": "penstock.tuner.plan_for",
    "probe_step": "penstock.probe.step",
    "tune": "penstock.tuner.tune",
    "watch": "penstock.watcher.watch",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import penstock` costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    module = _MODULES.get(name, "penstock.data.fields")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
