"""Training in 16 bits: autocast, loss scaling, a check of the losses, and a report of the precision of operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.errors import PenstockError, SettingError
from penstock.samplers.epoch_batches import check_count
from penstock.train.clip import GradClip

Kind = Literal["bf16", "fp16", "fp32"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_TENSOR_CORES = {"bf16": (8, 0), "fp16": (7, 0), "fp32": (8, 0)}
"""The first compute capability with tensor cores for each precision."""
_NEVER = 2**31 - 1
"""Growth interval of a fixed loss scale."""


def precision(
    model: torch.nn.Module, kind: Kind, *, loss_scale: float | Literal["dynamic"] = "dynamic", watch: int = 100
) -> Precision:
    """Return the precision in which to train the model on the device that it is on now.

    Only fp16 needs loss scaling: by a factor that is found during training, or by the given one. If `watch` losses in
    succession are NaN or infinite, the training has failed, and `backward` raises an error.
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
    """The parts of a training step that depend on the precision:

    with amp.autocast():
        loss = criterion(model(images), labels)
    amp.backward(loss)
    amp.step(optimizer, clip)       # clip is a GradClip, or left out
    """

    def __init__(self, kind: Kind, device: torch.device, loss_scale: float | Literal["dynamic"], watch: int) -> None:
        self.kind = kind
        self._device = device
        self._fixed_scale = None if loss_scale == "dynamic" else float(loss_scale)
        self.scaler = _make_scaler(device, self._fixed_scale) if kind == "fp16" else None
        self._watch = watch
        self._losses = 0
        self._bad: torch.Tensor | None = None
        """Number of losses that are not finite since the last check, on the device."""

    def autocast(self) -> torch.autocast:
        """Return the context for the forward pass and the loss."""
        return torch.autocast(self._device.type, _DTYPES[self.kind], enabled=self.kind != "fp32")

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of the loss, scaled if needed; the step, or the clipping before it, unscales them."""
        torch.autograd.backward(loss if self.scaler is None else self.scaler.scale(loss))
        bad = ~torch.isfinite(loss.detach())
        self._bad = bad.long() if self._bad is None else self._bad + bad
        self._losses += 1
        if self._losses == self._watch:
            self._check_losses()

    def step(self, optimizer: torch.optim.Optimizer, clip: GradClip | None = None) -> None:
        """Let the optimizer step; in fp16, and with a clip, the step is skipped if a gradient is not finite."""
        if clip is not None:
            clip.step(optimizer, self.scaler)
        elif self.scaler is not None:
            self.scaler.step(optimizer)
        else:
            optimizer.step()
        if self.scaler is not None:
            self.scaler.update(self._fixed_scale)

    def inspect(self, run: Callable[[], Any]) -> OperationReport:
        """Run a forward pass once, in this precision, and report what runs in 32 bits and what fits tensor cores."""
        with self.autocast(), torch.no_grad():
            return operations_of(run)

    @property
    def tensor_cores(self) -> bool | None:
        """Whether the device has tensor cores for this precision; None where that is not known."""
        if self._device.type != "cuda":
            return None
        allowed = self.kind != "fp32" or torch.get_float32_matmul_precision() != "highest"
        return allowed and torch.cuda.get_device_capability(self._device) >= _TENSOR_CORES[self.kind]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loss scale: its value, and for how long it has been kept."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with that loss scale."""
        if self.scaler is not None:
            self.scaler.load_state_dict(dict(state))

    def _check_losses(self) -> None:
        """Read the count of bad losses: the only place that waits for the device, once in `watch` losses."""
        bad, self._bad, self._losses = int(self._bad or 0), None, 0
        if bad == self._watch:
            raise PenstockError(
                f"{bad} losses in succession were NaN or infinite",
                stage="train",
                advice="Go back to a checkpoint; lower the learning rate, or use bf16 or a lower loss_scale",
            )


def _make_scaler(device: torch.device, fixed_scale: float | None) -> torch.amp.GradScaler:
    if fixed_scale is None:
        return torch.amp.GradScaler(device.type)
    return torch.amp.GradScaler(device.type, init_scale=fixed_scale, growth_interval=_NEVER)


# -- the report of operations ------------------------------------------------------------------------------------------

HALF = (torch.float16, torch.bfloat16)
MULTIPLE = 8
"""Divisor of the sides of a matrix product, or of the channels of a convolution, that fits tensor cores in 16 bits."""
_NO_WORK = {
    "_to_copy",
    "copy_",
    "clone",
    "empty",
    "empty_like",
    "fill_",
    "zero_",
    "zeros",
    "ones",
    "full",
    "scalar_tensor",
}
"""Operations that only move or fill memory."""
_PRODUCTS: Mapping[str, Callable[[Sequence[Any]], tuple[int, ...]]] = {
    "mm": lambda args: (*args[0].shape, args[1].shape[-1]),
    "addmm": lambda args: (*args[1].shape, args[2].shape[-1]),
    "bmm": lambda args: (*args[0].shape[1:], args[1].shape[-1]),
    "baddbmm": lambda args: (*args[1].shape[1:], args[2].shape[-1]),
    "convolution": lambda args: tuple(args[1].shape[:2]),
}
"""The numbers that must be multiples of 8, by operation: rows, inner and outer columns; output and input channels."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A matrix product or a convolution."""

    operation: str
    sides: tuple[int, ...]
    dtype: str

    @property
    def fits(self) -> bool:
        """Whether tensor cores compute all of it."""
        return self.dtype in ("float16", "bfloat16") and all(side % MULTIPLE == 0 for side in self.sides)

    def __str__(self) -> str:
        return f"{self.operation} {'×'.join(map(str, self.sides))} in {self.dtype}"


@dataclass(frozen=True, slots=True)
class OperationReport:
    """The operations of a forward pass by precision."""

    in_full: dict[str, int]
    """Number of calls of each operation that computed in 32 bits or more."""
    products: dict[MatrixProduct, int]
    """Number of calls of each matrix product and convolution."""

    def __str__(self) -> str:
        fitting = sum(count for product, count in self.products.items() if product.fits)
        total = sum(self.products.values())
        parts = [f"{fitting} of {total} products fit tensor cores"]
        unfit = [f"{product} ({count}×)" for product, count in self.products.items() if not product.fits]
        parts += [f"not {', '.join(unfit)}"] if unfit else []
        in_full = ", ".join(f"{name} ({count}×)" for name, count in self.in_full.items())
        return "; ".join([*parts, f"in 32 bits: {in_full or 'nothing'}"])


def operations_of(run: Callable[[], Any]) -> OperationReport:
    """Run the function once, and report all that it computes with floating-point numbers."""
    recorder = _OperationRecorder()
    with recorder:
        run()
    return OperationReport(dict(recorder.in_full.most_common()), dict(recorder.products.most_common()))


class _OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations below autocast, so with the precision in which they are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.in_full: Counter[str] = Counter()
        self.products: Counter[MatrixProduct] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        dtypes = {tensor.dtype for tensor in _floating(out)}
        name = func.overloadpacket.__name__
        if not dtypes or func.is_view or name in _NO_WORK:
            return out
        if not dtypes & set(HALF):
            self.in_full[name] += 1
        if name in _PRODUCTS:
            dtype = str(next(iter(dtypes))).removeprefix("torch.")
            self.products[MatrixProduct(name, _PRODUCTS[name](args), dtype)] += 1
        return out


def _floating(out: Any) -> Iterator[torch.Tensor]:
    for each in out if isinstance(out, tuple | list) else (out,):
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            yield each
