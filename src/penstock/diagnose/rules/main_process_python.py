"""The training loop's own Python takes the time, or another thread keeps it from running.

Between forward, backward and optimizer the loop converts, logs, computes metrics, draws; or a thread of the same
process (a metric server, a progress thread, a data thread) holds the interpreter's lock while the loop wants it.
The device waits either way.

Looks like `compute_bound`: the loop is busy; but not with the model.

Remedy: move work out of the loop (every n-th step, another process), threads that wait instead of spinning.
"""

from __future__ import annotations

from penstock.core.format import format_ms
from penstock.diagnose.evidence.contention import LOCKED_MIN
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

LEAST_REST = 0.25
"""Share of the cycle outside all phases, where phases are known."""


def check(evidence: Evidence) -> Answer:
    """The loop waits for the interpreter's lock, or does much that is no phase of training."""
    locked = evidence.contention.interpreter_s / evidence.loop.cycle_s if evidence.loop.cycle_s > 0 else 0.0
    if locked >= LOCKED_MIN:
        return Suspect(
            strength=0.85,
            summary=f"Another thread holds the interpreter {locked:.0%} of the time, and the loop waits",
            evidence=(
                f"of {format_ms(evidence.loop.cycle_s)} per step the loop's thread was ready to run for "
                f"{format_ms(evidence.contention.interpreter_s)} without a core being short or anything else in its way",
                f"other threads of the main process use {evidence.machine.other_threads_cpu:.1f} cores",
            ),
            advice="Let that thread wait or sleep, or move it to a process of its own",
            gain=evidence.loop.gain_without(evidence.contention.interpreter_s),
        )
    rest = evidence.loop.outside_phases_s
    if rest is None or evidence.loop.cycle_s <= 0 or rest < LEAST_REST * evidence.loop.cycle_s:
        return None
    return Suspect(
        strength=0.7,
        summary=f"{format_ms(rest)} of every step is Python outside the model",
        evidence=(
            f"{format_ms(rest)} of {format_ms(evidence.loop.cycle_s)} per step belong to no phase of training",
            *(f"main thread: {name} ({share:.0%})" for name, share in list(evidence.loop.functions.items())[:3]),
        ),
        advice="Do it every few dozen steps, or in another process",
        gain=evidence.loop.gain_without(rest),
    )
