"""Another batch size for an optimizer that is there already: its learning rates scaled, and warmed up to."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LambdaLR

from penstock.plan.batch_size import ScalingRule, scale_learning_rate


def scale_lr(
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    new_batch_size: int,
    *,
    rule: ScalingRule = "linear",
    dataset_size: int | None = None,
    warm_up_steps: int | None = None,
) -> LambdaLR:
    """Rates that were right for `batch_size` become those for `new_batch_size`; `step()` what is returned every step.

    Sizes are effective ones: over all ranks, and with accumulation. The rules are those of penstock.plan.batch_size:
    linear for SGD, sqrt for Adam and its like; a larger rate is reached over five epochs, or as many steps as you say.
    """
    scaling = scale_learning_rate(
        1.0, batch_size, new_batch_size, rule=rule, dataset_size=dataset_size, warm_up_steps=warm_up_steps
    )
    return LambdaLR(optimizer, scaling.rate_at)
