"""What the training loop waited and computed since the last decision."""

from __future__ import annotations

from statistics import median

from penstock.tuning.decide import Seen

ROUNDS = 8
"""Of the workers, that a window has at least: in-order delivery repeats itself after every one."""
LEAST_S = 1.0
"""That it lasts: shorter ones say more about the machine's mood than about the settings."""
PAUSE = 5.0
"""A step that takes so many times the usual is a pause (evaluation, a checkpoint), and counts as that many."""


class Window:
    """Steps of one setting, one after the other."""

    def __init__(self) -> None:
        self._waits_s: list[float] = []
        self._computes_s: list[float] = []
        self._seconds = 0.0

    def reset(self) -> None:
        """Begin anew: there is another setting, or a decision was made."""
        self._waits_s.clear()
        self._computes_s.clear()
        self._seconds = 0.0

    def note(self, wait_s: float, compute_s: float) -> None:
        """One step."""
        self._waits_s.append(wait_s)
        self._computes_s.append(compute_s)
        self._seconds += wait_s + compute_s

    def full(self, workers: int) -> bool:
        """Whether there is enough to decide on, and a round of the workers is just over."""
        rounds, rest = divmod(len(self._waits_s), max(1, workers))
        return rounds >= ROUNDS and rest == 0 and self._seconds >= LEAST_S

    def seen(self, *, batch_bytes: int, worker_bytes: int, free_bytes: int | None) -> Seen:
        """All of it."""
        usual = median(self._computes_s)
        return Seen(
            batches=len(self._waits_s),
            wait_s=sum(self._waits_s),
            compute_s=sum(min(compute_s, PAUSE * usual) for compute_s in self._computes_s),
            batch_bytes=batch_bytes,
            worker_bytes=worker_bytes,
            free_bytes=free_bytes,
        )
