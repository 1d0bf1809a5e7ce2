"""Every epoch begins with a wait for new workers.

Without `persistent_workers`, torch starts all workers anew for each epoch: processes, imports, the files that the
dataset opens. Then the first batches are made, and none is ready yet. With short epochs that is a large part of the
run. `next(iter(loader))` in every step is the worst case: all workers start, prefetch, and are ended again for one
batch.

Evidence: the waits for the first batches of epochs, and the time until the workers have ended.

Similar causes: `cache_miss` (a cold cache makes a first batch slow too, but not in every epoch).

Remedy: `persistent_workers=True`; light imports in the module of the dataset; fewer, longer epochs; one iterator that
is kept.
"""

from __future__ import annotations

from math import inf

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

LOST_MIN = 0.05
"""Share of the whole time that starting and ending workers takes."""
EPOCHS_MIN = 3
"""Fewer epochs do not show whether each of them begins with a wait."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if the first waits of the epochs after the first add up."""
    loop = evidence.loop
    if len(loop.first_steps) < EPOCHS_MIN or evidence.settings.num_workers == 0:
        return None
    later_s = loop.startup_s[1:]
    usual_s = loop.cycle_s * loop.wait_share
    lost_s = float((later_s - max(usual_s, _first_batch_s(evidence))).clip(min=0.0).sum() + loop.shutdown_s.sum())
    if lost_s <= LOST_MIN * loop.total_s:
        return RuledOut(f"the first batch of an epoch takes {format_ms(mean(later_s))}: little in all")
    remaining_s = loop.total_s - lost_s - float(loop.startup_s[0])  # the first start remains, but happens only once
    persistent = evidence.settings.in_force("persistent_workers")
    return Suspect(
        strength=0.9 if persistent is False else 0.6,
        summary=f"{lost_s / loop.total_s:.0%} of the time goes into starting each epoch",
        evidence=(
            f"the first batch of each of {len(later_s)} later epochs took {format_ms(mean(later_s))}, "
            f"others {format_ms(usual_s)}",
            f"ending an epoch took {format_ms(mean(loop.shutdown_s))}; persistent_workers is {persistent}",
        ),
        advice=_advice(evidence, persistent=bool(persistent)),
        gain=lost_s / remaining_s if remaining_s > 0 else inf,
        settings={"persistent_workers": True} if persistent is False else {},
    )


def _first_batch_s(evidence: Evidence) -> float:
    """Return the seconds that workers that run already take for the first batch of an epoch, which nothing saves.

    An iterator that is made anew for every batch could be kept, so that its batches are made ahead.
    """
    if len(evidence.loop.steps) < len(evidence.loop.first_steps) or not evidence.workers.fetches:
        return 0.0
    return float(np.median(evidence.workers.fetch_s))


def _advice(evidence: Evidence, *, persistent: bool) -> str:
    times_created = evidence.settings.times_created
    if len(evidence.loop.steps) < len(evidence.loop.first_steps):
        return "Make the iterator once and keep it: next(iter(loader)) starts all workers anew for one batch"
    if times_created > 1:
        return f"Make the DataLoader once, not {times_created} times, with persistent_workers=True"
    return "Find out what the dataset does at the start of each epoch" if persistent else "persistent_workers=True"
