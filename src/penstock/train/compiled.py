"""`torch.compile` that falls back to the model as it is, and counts how often it had to compile again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

log = logging.getLogger("penstock")

MANY = 3
"""Recompilations after which it is told: shapes that change from batch to batch cost more than compiling gains."""


def compile(model: torch.nn.Module, **options: Any) -> CompiledModel:
    """The model, compiled at its first call with torch.compile's options; where that fails, the model itself.

    The model stays what it is: its parameters, its `state_dict` and its names. Call what is returned in its place.
    Under autocast, its gradients are those of the model: torch.compile alone would compute them in 16 bits, too, where
    the model was called in an autocast and `backward()` is not.
    """
    return CompiledModel(model, options)


class CompiledModel:
    """A model to be called. Everything else about it is the model's."""

    def __init__(self, model: torch.nn.Module, options: dict[str, Any]) -> None:
        self.model = model
        self.graphs = 0
        """Graphs compiled so far."""
        self.recompiled = 0
        """Calls after the first one that had to compile."""
        self.failure: str | None = None
        """Why the model runs as it is, if it does."""
        self._calls = 0
        self._run: Any = torch.compile(model, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the model is called."""
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
        log.warning("the model cannot be compiled and runs as it is: %s", self.failure)

    def _count(self, new: int) -> None:
        self._calls += 1
        self.graphs += new
        if new == 0 or self._calls == 1:
            return
        self.recompiled += 1
        if self.recompiled == MANY:
            log.warning(
                "compiled again at %d calls of %d: give batches of one shape (drop_last, padding to few lengths), "
                "or compile with dynamic=True",
                self.recompiled,
                self._calls,
            )

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.model, name)


@contextmanager
def _backward_outside_of_autocast() -> Iterator[None]:
    """What is compiled now has its backward pass compiled as well, and torch would do that as if in the same autocast.

    The difference of two near points, as distances need it, is nothing but noise then.
    """
    from torch._functorch import config

    before = getattr(config, "backward_pass_autocast", None)
    if not isinstance(before, str):  # an older torch, or somebody has said exactly what is wanted
        yield
        return
    config.backward_pass_autocast = "off"  # as its `patch` does, in less time: this is in every step
    try:
        yield
    finally:
        config.backward_pass_autocast = before


def _graphs() -> int:
    """Compiled in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _failures() -> tuple[type[Exception], ...]:
    """What goes wrong with compiling, rather than with the model."""
    from torch._dynamo.exc import TorchDynamoException

    return (TorchDynamoException,)
