"""The batch size of a sweep instead of the one of now: what becomes of the learning rate, or how to hold the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from penstock.errors import SettingError
from penstock.plan.learning_rate import Rule, Scaling, accumulation_steps, scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """From one batch size to another."""

    batch_size: int
    then: int
    scalings: tuple[Scaling, ...] = ()
    """By each rule; empty where no learning rate is known."""
    accumulation: int | None = None
    """Batches of the new size per optimizer step that make the old one; None where no number does."""
    note: str = ""
    """Why not, or what is missing."""


def resize(
    batch_size: int, then: int, *, learning_rate: float | None = None, dataset_size: int | None = None
) -> Resize:
    """A larger batch changes the learning rate; a smaller one can be added up to the same."""
    scalings = () if learning_rate is None else _scalings(learning_rate, batch_size, then, dataset_size)
    if then > batch_size:
        unknown = any(scaling.warm_up_steps == 0 for scaling in scalings)
        note = "How long the warm-up takes is not known: five epochs are usual (give the dataset's size)"
        return Resize(batch_size=batch_size, then=then, scalings=scalings, note=note if unknown else "")
    try:
        steps = accumulation_steps(batch_size, then)
    except SettingError as error:
        return Resize(batch_size=batch_size, then=then, scalings=scalings, note=str(error))
    return Resize(batch_size=batch_size, then=then, scalings=scalings, accumulation=steps)


def _scalings(rate: float, batch_size: int, then: int, dataset_size: int | None) -> tuple[Scaling, ...]:
    warm_up = 0 if dataset_size is None else None
    return tuple(
        scale(rate, batch_size, then, rule=rule, dataset_size=dataset_size, warm_up_steps=warm_up)
        for rule in get_args(Rule)
    )
