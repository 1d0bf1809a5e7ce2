"""Which trainings are run: the reports' own, then the same with one thing changed after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.core.plan import Plan
from penstock.demo.material import Lot, Size
from penstock.demo.stage import Stage
from penstock.verify.judge import predicted

REPORTS = {"num-workers": 0}
"""Of the field reports' settings the one that two of them begin with, and hold to be a must on Windows."""
EXACT_S = 2.0
"""Of training on the very pixels that Pillow gives: some steps are enough to compare losses."""


def as_reported(lot: Lot, size: Size, seconds: float) -> Stage:
    """tarfile, Pillow and torch's DataLoader."""
    arguments = {"shards": lot.folder, "size": size.image_size, "batch-size": size.batch_size, "seconds": seconds}
    return Stage(name="before", title="as in the reports", arguments={**arguments, **REPORTS})


def as_planned(before: Stage, plan: Plan) -> Stage:
    """The plan's settings in its DataLoader."""
    gain, _ = predicted(plan)
    return replace(before, name="tuned", title="DataLoader as planned", dataloader=plan.dataloader, predicted_gain=gain)


def with_loader(before: Stage, gain: float | None) -> Stage:
    """penstock.Loader on the same shards."""
    arguments = {**before.arguments, "loader": "penstock"}
    return replace(before, name="loader", title="penstock.Loader", arguments=arguments, predicted_gain=gain)


def on_packed(ours: Stage, packed: Lot, gain: float | None) -> Stage:
    """The same on packed ones."""
    arguments = {**ours.arguments, "shards": packed.folder}
    return replace(ours, name="packed", title="Loader, packed shards", arguments=arguments, predicted_gain=gain)


def with_exact_pixels(ours: Stage) -> Stage:
    """Not raced: pictures decoded and shrunk as Pillow does it, so that losses can be the same."""
    changed: dict[str, Any] = {"quality": "exact", "seconds": min(EXACT_S, ours.arguments["seconds"])}
    return replace(ours, name="exact", title="Loader, exact pixels", arguments={**ours.arguments, **changed})
