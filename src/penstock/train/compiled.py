"""A `torch.compile` that falls back to the uncompiled model, and counts recompilations."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

log = logging.getLogger("penstock")

WARN_AFTER = 3
"""Recompilations until a warning; batches of changing shapes cost more time than compiling saves."""


def compile(model: torch.nn.Module, **options: Any) -> CompiledModel:
    """Return the model compiled at its first call with torch.compile's options, or uncompiled if that fails.

    The original keeps its parameters, its `state_dict` and its names; call the returned model in its place. Under
    autocast, the gradients are those of the original: torch.compile alone would compute them in 16 bits too if the
    model is called in an autocast context and `backward()` is not.
    """
    return CompiledModel(model, options)


class CompiledModel:
    """A compiled model; all attributes other than its own are those of the original."""

    def __init__(self, model: torch.nn.Module, options: dict[str, Any]) -> None:
        self.model = model
        self.graphs = 0
        """Graphs compiled so far."""
        self.recompiled = 0
        """Calls after the first one that had to compile."""
        self.failure: str | None = None
        """The reason why the model runs uncompiled; None if it is compiled."""
        self._calls = 0
        self._run: Any = torch.compile(model, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled model; fall back to the original if compiling fails."""
        if self.failure is not None:
            return self.model(*args, **kwargs)
        before = _graphs()
        try:
            with _backward_outside_of_autocast():
                out = self._run(*args, **kwargs)
        except _failures() as error:
            self._fall_back(error)
            return self.model(*args, **kwargs)
        self._count(_graphs() - before)
        return out

    def _fall_back(self, error: Exception) -> None:
        self.failure = " ".join(f"{type(error).__name__}: {error}".split("\n\n")[0].split())
        self._run = None
        log.warning("the model cannot be compiled and runs uncompiled: %s", self.failure)

    def _count(self, new: int) -> None:
        self._calls += 1
        self.graphs += new
        if new == 0 or self._calls == 1:
            return
        self.recompiled += 1
        if self.recompiled == WARN_AFTER:
            log.warning(
                "the model was compiled again at %d of %d calls: give batches of one shape (drop_last, padding to few "
                "lengths), or compile with dynamic=True",
                self.recompiled,
                self._calls,
            )

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # it is not set yet while a copy is made
            raise AttributeError(name)
        return getattr(self.model, name)


@contextmanager
def _backward_outside_of_autocast() -> Iterator[None]:
    """Compile the backward pass without autocast; torch would compile it in the autocast of the forward pass.

    With that, the difference of two near points, which distances need, would be nothing but noise.
    """
    from torch._functorch import config

    before = getattr(config, "backward_pass_autocast", None)
    if not isinstance(before, str):  # an older torch, or a setting of the user
        yield
        return
    config.backward_pass_autocast = "off"  # faster than `config.patch`, because this runs in every step
    try:
        yield
    finally:
        config.backward_pass_autocast = before


def _graphs() -> int:
    """Return the number of graphs compiled in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that come from compiling, not from the model."""
    from torch._dynamo.exc import TorchDynamoException

    return (TorchDynamoException,)
