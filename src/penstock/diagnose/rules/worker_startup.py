"""Every epoch begins with a wait for new workers.

Without `persistent_workers` torch starts all workers anew for each pass: processes, imports, the dataset's own
opening of files; then the first batches are made from nothing. With short epochs that is a large part of the run.

Looks like a slow first batch of a cold cache, but it comes at every pass.

`next(iter(loader))` in every step is the worst of it: all workers start, fill their prefetch and are ended again for
one batch.

Remedy: `persistent_workers=True`; light imports in the dataset's module; fewer, longer passes; one iterator that is
kept.
"""

from __future__ import annotations

from math import inf

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

LEAST = 0.05
"""Share of the whole time."""


def check(evidence: Evidence) -> Answer:
    """The first waits of passes after the first add up."""
    if len(evidence.loop.first_steps) < 3 or evidence.settings.num_workers == 0:
        return None
    again = evidence.loop.startup_s[1:]
    usual = evidence.loop.cycle_s * evidence.loop.wait_share
    lost = float((again - usual).clip(min=0.0).sum() + evidence.loop.shutdown_s.sum())
    if lost <= LEAST * evidence.loop.total_s:
        return RuledOut(f"the first batch of a pass takes {format_ms(mean(again))}: little in all")
    rest_s = (
        evidence.loop.total_s - lost - float(evidence.loop.startup_s[0])
    )  # the first start stays, and comes but once
    persistent = evidence.settings.in_force("persistent_workers")
    return Suspect(
        strength=0.9 if persistent is False else 0.6,
        summary=f"{lost / evidence.loop.total_s:.0%} of the time goes into starting each pass",
        evidence=(
            f"the first batch of each of {len(again)} later passes took {format_ms(mean(again))}, "
            f"others {format_ms(usual)}",
            f"ending a pass took {format_ms(mean(evidence.loop.shutdown_s))}; persistent_workers is {persistent}",
        ),
        advice=_advice(evidence, persistent=bool(persistent)),
        gain=lost / rest_s if rest_s > 0 else inf,
    )


def _advice(evidence: Evidence, *, persistent: bool) -> str:
    if len(evidence.loop.steps) < len(evidence.loop.first_steps):
        return "Make the iterator once and keep it: next(iter(loader)) starts all workers anew for one batch"
    if evidence.settings.times_created > 1:
        return f"Make the DataLoader once, not {evidence.settings.times_created} times, with persistent_workers=True"
    return "See what the dataset does at the start of each pass" if persistent else "persistent_workers=True"
