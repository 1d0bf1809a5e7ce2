"""Penstock keeps a GPU fed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.flow.fields import Array, Finish, Image, Json, Label, Raw, Text
    from penstock.loader import Loader
    from penstock.observe.watch import watch
    from penstock.plan.probes.compute import probe_step
    from penstock.tuning.adaptive import AdaptiveLoader
    from penstock.tuning.planfor import plan_for
    from penstock.tuning.tune import tune

__all__ = [
    "AdaptiveLoader", "Array", "Finish", "Image", "Json", "Label", "Loader", "Raw", "Text",
    "plan_for", "probe_step", "tune", "watch",
]  # fmt: skip
__version__ = "0.1.0.dev0"
_ROOMS = {
    "AdaptiveLoader": "penstock.tuning.adaptive",
    "Loader": "penstock.loader",
    "plan_for": "penstock.tuning.planfor",
    "probe_step": "penstock.plan.probes.compute",
    "tune": "penstock.tuning.tune",
    "watch": "penstock.observe.watch",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first asked for, so that `import penstock` costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    room = _ROOMS.get(name, "penstock.flow.fields")
    value = globals()[name] = getattr(importlib.import_module(room), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
