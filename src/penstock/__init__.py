"""Penstock keeps a GPU fed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.data.fields import Array, GpuTransform, Image, Json, Label, Raw, Text
    from penstock.loader import Loader
    from penstock.probe.step import probe_step
    from penstock.tuner.adaptive.loader import AdaptiveLoader
    from penstock.tuner.plan_for import plan_for
    from penstock.tuner.tune import tune
    from penstock.watcher.watch import watch

__all__ = [
    "AdaptiveLoader", "Array", "GpuTransform", "Image", "Json", "Label", "Loader", "Raw", "Text",
    "plan_for", "probe_step", "tune", "watch",
]  # fmt: skip
__version__ = "0.1.0.dev0"
_MODULES = {
    "AdaptiveLoader": "penstock.tuner.adaptive.loader",
    "Loader": "penstock.loader",
    "plan_for": "penstock.tuner.plan_for",
    "probe_step": "penstock.probe.step",
    "tune": "penstock.tuner.tune",
    "watch": "penstock.watcher.watch",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first asked for, so that `import penstock` costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    module = _MODULES.get(name, "penstock.data.fields")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
