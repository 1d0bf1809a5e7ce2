"""Iterations of `penstock.DataLoader` that do not run on the engine: torch's own machinery with exact state."""

from __future__ import annotations

from typing import Any


class StatefulIteration:
    """One iteration with num_workers=0, over an IterableDataset, or with batch_size=None."""

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        raise NotImplementedError

    @staticmethod
    def initial_state(loader: Any) -> dict[str, Any]:
        """Return the state of a loader that has not been iterated over."""
        raise NotImplementedError

    def begin_epoch(self, loader: Any, state: dict[str, Any] | None) -> None:
        """Begin the next epoch with the same workers."""
        raise NotImplementedError

    is_ours = True

    def __iter__(self) -> StatefulIteration:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch that was delivered last."""
        raise NotImplementedError
