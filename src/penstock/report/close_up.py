"""The close-up: the loop and its workers, batch by batch, around the longest wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.diagnose.evidence.evidence import Evidence
from penstock.recording.format import FetchLine

WINDOW_STEPS = 120
WINDOW_LANES = 64
WINDOW_FETCHES = 5000
"""What the close-up shows at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseUp:
    """The loop and its workers around the longest wait; times are from the window's begin."""

    seconds: float
    period: int | None
    loop: list[tuple[float, float, float, int, bool]]
    """Start, wait, step, batch, whether it was slow."""
    lanes: list[tuple[str, list[tuple[float, float, float, int]]]]
    """A worker's name and its batches: start, seconds, of them collate, batch."""
    hidden: str
    """What is too much to draw, in words."""


def close_up(evidence: Evidence, period: int | None) -> CloseUp:
    """Two periods before the longest wait and one after, all of one pass, or of passes of one batch each."""
    at = _window(evidence, period)
    steps, slow = evidence.loop.steps[at], evidence.loop.slow[at].tolist()
    first_s, last_s = steps[0].at_s, steps[-1].at_s + steps[-1].wait_s + steps[-1].step_s
    inside = [
        fetch for fetch in evidence.workers.fetches if fetch.at_s < last_s and fetch.at_s + fetch.fetch_s > first_s
    ]
    fetches = sorted(inside, key=lambda fetch: fetch.at_s)[:WINDOW_FETCHES]
    workers = sorted({fetch.worker for fetch in fetches})
    return CloseUp(
        seconds=last_s - first_s,
        period=period,
        loop=[
            (round(step.at_s - first_s, 6), round(step.wait_s, 6), round(step.step_s, 6), step.batch, is_slow)
            for step, is_slow in zip(steps, slow, strict=True)
        ],
        lanes=[_lane(worker, fetches, first_s) for worker in workers[:WINDOW_LANES]],
        hidden=_hidden(len(workers) - WINDOW_LANES, "workers") or _hidden(len(inside) - WINDOW_FETCHES, "batches"),
    )


def _hidden(count: int, what: str) -> str:
    return f"{count:,} more {what} are not drawn" if count > 0 else ""


def _window(evidence: Evidence, period: int | None) -> slice:
    reach = min(period or max(evidence.settings.num_workers, 8), WINDOW_STEPS // 3)
    worst = int(np.argmax(evidence.loop.wait_s))
    steps, longest = evidence.loop.steps, evidence.loop.steps[worst]
    around = range(max(0, worst - 2 * reach), min(len(steps), worst + reach + 1))
    inside = [at for at in around if steps[at].epoch == longest.epoch or steps[at].batch == longest.batch == 0]
    return slice(inside[0], inside[-1] + 1)


def _lane(worker: int, fetches: list[FetchLine], first_s: float) -> tuple[str, list[tuple[float, float, float, int]]]:
    return "main process" if worker < 0 else f"worker {worker}", [
        (round(fetch.at_s - first_s, 6), round(fetch.fetch_s, 6), round(fetch.collate_s, 6), fetch.batch)
        for fetch in fetches
        if fetch.worker == worker
    ]
