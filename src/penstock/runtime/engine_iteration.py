"""Iterations of `penstock.DataLoader` that run on workers of Penstock."""

from __future__ import annotations

import os
from typing import Any


def engine_is_available() -> bool:
    """Return whether this system has what the workers need: POSIX locks and processes."""
    return os.name == "posix"


class EngineIteration:
    """One iteration over a map-style dataset with worker processes."""

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        raise NotImplementedError

    @staticmethod
    def initial_state(loader: Any) -> dict[str, Any]:
        """Return the state of a loader that has not been iterated over."""
        raise NotImplementedError

    def begin_epoch(self, loader: Any, state: dict[str, Any] | None) -> None:
        """Begin the next epoch with the same workers."""
        raise NotImplementedError

    def __iter__(self) -> EngineIteration:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch that was delivered last."""
        raise NotImplementedError
