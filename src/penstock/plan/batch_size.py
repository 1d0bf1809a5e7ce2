"""Changing the batch size: scaling the learning rate for a larger batch, or accumulating smaller ones.

`penstock sweep` finds a batch size (batch_size_sweep.py); this module computes what that size means for the training.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from penstock.errors import SettingError

ScalingRule = Literal["linear", "sqrt"]
"""How the learning rate grows with the batch: linear is usual for SGD, sqrt for Adam and similar optimizers."""

WARM_UP_EPOCHS = 5
"""Epochs over which a larger learning rate is reached by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateScaling:
    """A learning rate for another batch size, and the warm-up to it."""

    rule: ScalingRule
    factor: float
    """New batch size over old batch size."""
    before: float
    """The old learning rate."""
    learning_rate: float
    """The new learning rate."""
    warm_up_steps: int
    """Steps of the new batch from the old rate to the new one; 0 where the rate does not grow."""

    def rate_at(self, step: int) -> float:
        """Return the rate at a step, counted from 0: it rises linearly until the warm-up is over."""
        if step + 1 >= self.warm_up_steps:
            return self.learning_rate
        return self.before + (self.learning_rate - self.before) * (step + 1) / self.warm_up_steps


def scale_learning_rate(
    learning_rate: float,
    batch_size: int,
    new_batch_size: int,
    *,
    rule: ScalingRule = "linear",
    dataset_size: int | None = None,
    warm_up_steps: int | None = None,
) -> LearningRateScaling:
    """Return the rate for `new_batch_size` that corresponds to `learning_rate` at `batch_size`.

    Sizes are effective ones: over all ranks, with accumulation. The warm-up takes `warm_up_steps`, or five epochs of
    the dataset; one of the two must be known where the rate grows.
    """
    if rule not in get_args(ScalingRule):
        raise SettingError(f"rule {rule!r} is not known", advice=f"Use one of {', '.join(get_args(ScalingRule))}")
    if not 0 < learning_rate < inf:
        raise SettingError(f"learning_rate={learning_rate} is not above 0")
    _check_positive(batch_size=batch_size, new_batch_size=new_batch_size)
    factor = new_batch_size / batch_size
    return LearningRateScaling(
        rule=rule,
        factor=factor,
        before=learning_rate,
        learning_rate=learning_rate * (factor if rule == "linear" else factor**0.5),
        warm_up_steps=_warm_up_steps(new_batch_size, dataset_size, warm_up_steps) if factor > 1 else 0,
    )


def accumulation_steps(effective_batch: int, batch_size: int, *, world_size: int = 1) -> int:
    """Return the batches per optimizer step that give exactly the effective batch; raise SettingError if none do."""
    _check_positive(effective_batch=effective_batch, batch_size=batch_size, world_size=world_size)
    step_samples = batch_size * world_size
    if effective_batch % step_samples:
        divisors = [size for size in range(1, batch_size + 1) if effective_batch % (size * world_size) == 0]
        advice = f"A batch of {divisors[-1]} divides it" if divisors else f"No batch on {world_size} ranks divides it"
        raise SettingError(
            f"an effective batch of {effective_batch} is no multiple of {batch_size} on each of {world_size} ranks",
            advice=advice,
        )
    return effective_batch // step_samples


def _warm_up_steps(batch_size: int, dataset_size: int | None, steps: int | None) -> int:
    if steps is not None:
        if type(steps) is not int or steps < 0:
            raise SettingError(f"warm_up_steps={steps} is not a whole number of at least 0")
        return steps
    if dataset_size is None:
        raise SettingError(
            "the length of the warm-up is not known", advice="Give dataset_size (five epochs) or warm_up_steps"
        )
    _check_positive(dataset_size=dataset_size)
    return -(-WARM_UP_EPOCHS * dataset_size // batch_size)


def _check_positive(**counts: int) -> None:
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise SettingError(f"{name}={count} is not a whole number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeChange:
    """A change from one batch size to another, with what the training must adapt."""

    batch_size: int
    """The current size."""
    then: int
    """The new size."""
    scalings: tuple[LearningRateScaling, ...] = ()
    """The learning rate by each rule; empty where no learning rate is known."""
    accumulation: int | None = None
    """Batches of the new size per optimizer step that give the old size; None where no number does."""
    note: str = ""
    """The reason why something cannot be computed, or the information that is missing."""


def change_batch_size(
    batch_size: int, then: int, *, learning_rate: float | None = None, dataset_size: int | None = None
) -> BatchSizeChange:
    """Return how the learning rate changes for a larger batch, or how many smaller batches give the same one."""
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
    warm_up_steps = 0 if dataset_size is None else None
    return tuple(
        scale_learning_rate(rate, batch_size, then, rule=rule, dataset_size=dataset_size, warm_up_steps=warm_up_steps)
        for rule in get_args(ScalingRule)
    )
