"""The batch size of a sweep instead of the one of now: what becomes of the learning rate, or how to hold the batch."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from penstock.errors import SettingError

Rule = Literal["linear", "sqrt"]

WARM_UP_EPOCHS = 5
"""Over which a larger rate is reached, where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateScaling:
    """A learning rate for another batch size, and the way to it."""

    rule: Rule
    factor: float
    """Of the batch."""
    before: float
    """The learning rate as it was."""
    learning_rate: float
    """As it should become."""
    warm_up_steps: int
    """From the old rate to the new one, in steps of the new batch; 0 where the rate does not grow."""

    def at(self, step: int) -> float:
        """At a step, counted from 0: along a straight line until the warm-up is over."""
        if step + 1 >= self.warm_up_steps:
            return self.learning_rate
        return self.before + (self.learning_rate - self.before) * (step + 1) / self.warm_up_steps


def scale(
    learning_rate: float,
    batch_size: int,
    new_batch_size: int,
    *,
    rule: Rule = "linear",
    dataset_size: int | None = None,
    warm_up_steps: int | None = None,
) -> LearningRateScaling:
    """The rate for `new_batch_size` if `learning_rate` was right for `batch_size`; sizes are effective ones.

    The warm-up is as long as you say, or five epochs of the dataset; one of both must be known where the rate grows.
    """
    if rule not in get_args(Rule):
        raise SettingError(f"rule {rule!r} is not known", advice=f"Use one of {', '.join(get_args(Rule))}")
    if not 0 < learning_rate < inf:
        raise SettingError(f"learning_rate={learning_rate} is not above 0")
    _check(batch_size=batch_size, new_batch_size=new_batch_size)
    factor = new_batch_size / batch_size
    return LearningRateScaling(
        rule=rule,
        factor=factor,
        before=learning_rate,
        learning_rate=learning_rate * (factor if rule == "linear" else factor**0.5),
        warm_up_steps=_warm_up(new_batch_size, dataset_size, warm_up_steps) if factor > 1 else 0,
    )


def accumulation_steps(effective_batch: int, batch_size: int, *, world_size: int = 1) -> int:
    """Batches per optimizer step that give the effective batch exactly; refused where none do."""
    _check(effective_batch=effective_batch, batch_size=batch_size, world_size=world_size)
    together = batch_size * world_size
    if effective_batch % together:
        fitting = [size for size in range(1, batch_size + 1) if effective_batch % (size * world_size) == 0]
        advice = f"A batch of {fitting[-1]} divides it" if fitting else f"No batch on {world_size} ranks divides it"
        raise SettingError(
            f"an effective batch of {effective_batch} is no multiple of {batch_size} on each of {world_size} ranks",
            advice=advice,
        )
    return effective_batch // together


def _warm_up(batch_size: int, dataset_size: int | None, steps: int | None) -> int:
    if steps is not None:
        if type(steps) is not int or steps < 0:
            raise SettingError(f"warm_up_steps={steps} is not a whole number of at least 0")
        return steps
    if dataset_size is None:
        raise SettingError(
            "how long the warm-up should be is not known", advice="Give dataset_size (five epochs) or warm_up_steps"
        )
    _check(dataset_size=dataset_size)
    return -(-WARM_UP_EPOCHS * dataset_size // batch_size)


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise SettingError(f"{name}={count} is not a whole number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeChange:
    """From one batch size to another."""

    batch_size: int
    then: int
    scalings: tuple[LearningRateScaling, ...] = ()
    """By each rule; empty where no learning rate is known."""
    accumulation: int | None = None
    """Batches of the new size per optimizer step that make the old one; None where no number does."""
    note: str = ""
    """Why not, or what is missing."""


def resize(
    batch_size: int, then: int, *, learning_rate: float | None = None, dataset_size: int | None = None
) -> BatchSizeChange:
    """A larger batch changes the learning rate; a smaller one can be added up to the same."""
    scalings = () if learning_rate is None else _scalings(learning_rate, batch_size, then, dataset_size)
    if then > batch_size:
        unknown = any(scaling.warm_up_steps == 0 for scaling in scalings)
        note = "How long the warm-up takes is not known: five epochs are usual (give the dataset's size)"
        return BatchSizeChange(batch_size=batch_size, then=then, scalings=scalings, note=note if unknown else "")
    try:
        steps = accumulation_steps(batch_size, then)
    except SettingError as error:
        return BatchSizeChange(batch_size=batch_size, then=then, scalings=scalings, note=str(error))
    return BatchSizeChange(batch_size=batch_size, then=then, scalings=scalings, accumulation=steps)


def _scalings(rate: float, batch_size: int, then: int, dataset_size: int | None) -> tuple[LearningRateScaling, ...]:
    warm_up = 0 if dataset_size is None else None
    return tuple(
        scale(rate, batch_size, then, rule=rule, dataset_size=dataset_size, warm_up_steps=warm_up)
        for rule in get_args(Rule)
    )
