"""Training in 16 bits: autocast, the loss scaled where it has to be, and a watch on losses that are not numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch

from penstock.errors import PenstockError, SettingError
from penstock.samplers.epoch_batches import check_count
from penstock.train.clip import GradClip
from penstock.train.precision_report import OperationReport, operations_of

Kind = Literal["bf16", "fp16", "fp32"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_TENSOR_CORES = {"bf16": (8, 0), "fp16": (7, 0), "fp32": (8, 0)}
"""The first compute capability that has them."""
_NEVER = 2**31 - 1


def precision(
    model: torch.nn.Module, kind: Kind, *, loss_scale: float | Literal["dynamic"] = "dynamic", watch: int = 100
) -> Precision:
    """How this model is to be trained, on the device that it is on now.

    Only fp16 needs its loss scaled: by as much as goes well, found while training, or by a number of yours. Where
    `watch` losses on end are NaN or infinite, training is over in all but name, and `backward` raises an error.
    """
    if kind not in get_args(Kind):
        raise SettingError(f"precision {kind!r} is not known", advice=f"Use one of {', '.join(get_args(Kind))}")
    if loss_scale != "dynamic" and not 0 < loss_scale < float("inf"):
        raise SettingError(f"loss_scale={loss_scale} is not above 0")
    if loss_scale != "dynamic" and kind != "fp16":
        raise SettingError(f"{kind} needs no loss_scale", advice="Leave it out; it is for fp16")
    check_count(watch=watch)
    first = next(model.parameters(), None)
    if first is None:
        raise SettingError("a model without parameters is on no device")
    device = first.device
    if kind == "bf16" and device.type == "cuda" and torch.cuda.get_device_capability(device) < _TENSOR_CORES["bf16"]:
        raise SettingError(f"{torch.cuda.get_device_name(device)} has no bf16", advice='Use "fp16"')
    return Precision(kind, device, loss_scale, watch)


class Precision:
    """The four places of a step where precision matters:

    with amp.autocast():
        loss = criterion(model(images), labels)
    amp.backward(loss)
    amp.step(optimizer, clip)       # clip is a GradClip, or left out
    """

    def __init__(self, kind: Kind, device: torch.device, loss_scale: float | Literal["dynamic"], watch: int) -> None:
        self.kind = kind
        self._device = device
        self._fixed = None if loss_scale == "dynamic" else float(loss_scale)
        self.scaler = _scaler(device, self._fixed) if kind == "fp16" else None
        self._watch = watch
        self._losses = 0
        self._bad: torch.Tensor | None = None

    def autocast(self) -> torch.autocast:
        """Around the forward pass and the loss."""
        return torch.autocast(self._device.type, _DTYPES[self.kind], enabled=self.kind != "fp32")

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of the loss, scaled where that is needed; the step, or the clip before it, undoes the scaling."""
        torch.autograd.backward(loss if self.scaler is None else self.scaler.scale(loss))
        bad = ~torch.isfinite(loss.detach())
        self._bad = bad.long() if self._bad is None else self._bad + bad
        self._losses += 1
        if self._losses == self._watch:
            self._look()

    def step(self, optimizer: torch.optim.Optimizer, clip: GradClip | None = None) -> None:
        """Let the optimizer step; in fp16, and with a clip, not if a gradient is not finite."""
        if clip is not None:
            clip.step(optimizer, self.scaler)
        elif self.scaler is not None:
            self.scaler.step(optimizer)
        else:
            optimizer.step()
        if self.scaler is not None:
            self.scaler.update(self._fixed)

    def look(self, run: Callable[[], Any]) -> OperationReport:
        """Run a forward pass once, in this precision: what falls back to 32 bits, and what fits tensor cores."""
        with self.autocast(), torch.no_grad():
            return operations_of(run)

    @property
    def tensor_cores(self) -> bool | None:
        """Whether the device has tensor cores for this precision; None where there is no telling."""
        if self._device.type != "cuda":
            return None
        allowed = self.kind != "fp32" or torch.get_float32_matmul_precision() != "highest"
        return allowed and torch.cuda.get_device_capability(self._device) >= _TENSOR_CORES[self.kind]

    def state_dict(self) -> dict[str, Any]:
        """The loss scale, and how long it has held."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with it."""
        if self.scaler is not None:
            self.scaler.load_state_dict(dict(state))

    def _look(self) -> None:
        """The one place where the loop waits for the device: once in `watch` losses."""
        bad, self._bad, self._losses = int(self._bad or 0), None, 0
        if bad == self._watch:
            raise PenstockError(
                f"{bad} losses on end were NaN or infinite",
                stage="train",
                advice="Go back to a checkpoint; lower the learning rate, or use bf16 or a lower loss_scale",
            )


def _scaler(device: torch.device, fixed: float | None) -> torch.amp.GradScaler:
    if fixed is None:
        return torch.amp.GradScaler(device.type)
    return torch.amp.GradScaler(device.type, init_scale=fixed, growth_interval=_NEVER)
