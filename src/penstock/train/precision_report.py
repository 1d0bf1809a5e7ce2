"""Which operations of a forward pass run in which precision, and whether tensor cores can take the large ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HALF = (torch.float16, torch.bfloat16)
MULTIPLE = 8
"""Sides of a product, or channels of a convolution, that tensor cores take whole in 16 bits."""
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
_PRODUCTS: Mapping[str, Callable[[Sequence[Any]], tuple[int, ...]]] = {
    "mm": lambda args: (*args[0].shape, args[1].shape[-1]),
    "addmm": lambda args: (*args[1].shape, args[2].shape[-1]),
    "bmm": lambda args: (*args[0].shape[1:], args[1].shape[-1]),
    "baddbmm": lambda args: (*args[1].shape[1:], args[2].shape[-1]),
    "convolution": lambda args: tuple(args[1].shape[:2]),
}
"""What must be multiples of 8, of each kind of product: rows, inner and outer columns; output and input channels."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A matrix product or a convolution."""

    operation: str
    sides: tuple[int, ...]
    dtype: str

    @property
    def fits(self) -> bool:
        """Whether tensor cores take it whole."""
        return self.dtype in ("float16", "bfloat16") and all(side % MULTIPLE == 0 for side in self.sides)

    def __str__(self) -> str:
        return f"{self.operation} {'×'.join(map(str, self.sides))} in {self.dtype}"


@dataclass(frozen=True, slots=True)
class OperationReport:
    """What was seen."""

    in_full: dict[str, int]
    """Operations that computed in 32 bits, or more, and how often."""
    products: dict[MatrixProduct, int]
    """Matrix products and convolutions, and how often."""

    def __str__(self) -> str:
        fitting = sum(count for product, count in self.products.items() if product.fits)
        total = sum(self.products.values())
        parts = [f"{fitting} of {total} products fit tensor cores"]
        odd = [f"{product} ({count}×)" for product, count in self.products.items() if not product.fits]
        parts += [f"not {', '.join(odd)}"] if odd else []
        told = ", ".join(f"{name} ({count}×)" for name, count in self.in_full.items())
        return "; ".join([*parts, f"in 32 bits: {told or 'nothing'}"])


def operations_of(run: Callable[[], Any]) -> OperationReport:
    """Run it once, and look at everything it computes with floating-point numbers."""
    seen = _OperationRecorder()
    with seen:
        run()
    return OperationReport(dict(seen.in_full.most_common()), dict(seen.products.most_common()))


class _OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stands below autocast: what comes by here is what is computed."""

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
