"""The rules: one file for each cause of a stall, named after the cause.

The module's docstring says what the rule sees, why it hurts, how it differs from its look-alikes, and the remedy; the
page docs/rules.md is generated from these docstrings. The function `check(evidence)` is the rule.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from penstock.diagnose.suspect import Rule


@cache
def all_rules() -> dict[str, Rule]:
    """Return the `check` function of every file in this package, by the name of the file."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name: importlib.import_module(f"{__name__}.{name}").check for name in names}
