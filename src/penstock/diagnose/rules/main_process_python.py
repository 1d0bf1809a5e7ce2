"""The training loop's own Python code takes the time, or another thread keeps it from running.

Between forward, backward and optimizer the loop converts, logs, computes metrics or draws plots. Or a thread of the
same process (a metrics server, a progress display, a data thread) holds the interpreter lock while the loop needs it.
In both cases the device waits.

Evidence: time outside all phases of training and outside torch, by stack samples; or a loop that is ready to run, could
have a core, and does not compute.

Similar causes: `compute_bound` (the loop is busy there too, but with the model, or with losses and other operators that
it calls itself).

Remedy: move work out of the loop (every n-th step, or another process); use threads that wait instead of spinning.
"""

from __future__ import annotations

from penstock.core.format import format_ms
from penstock.diagnose.evidence.contention import LOCKED_MIN
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

OUTSIDE_MIN = 0.25
"""Share of the time per step outside all phases, where phases are known."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if the loop waits for the interpreter lock, or spends much time outside the phases of training."""
    loop, interpreter_s = evidence.loop, evidence.contention.interpreter_s
    locked = interpreter_s / loop.cycle_s if loop.cycle_s > 0 else 0.0
    if locked >= LOCKED_MIN:
        return Suspect(
            strength=0.85,
            summary=f"Another thread holds the interpreter {locked:.0%} of the time, and the loop waits",
            evidence=(
                f"of {format_ms(loop.cycle_s)} per step the loop's thread was ready to run for "
                f"{format_ms(interpreter_s)} without lacking a core or waiting for anything else",
                f"other threads of the main process use {evidence.machine.other_threads_cpu:.1f} cores",
            ),
            advice="Let that thread wait or sleep, or move it to a process of its own",
            saved_s=loop.saving(interpreter_s),
        )
    outside_s, own_s = loop.outside_phases_s, loop.own_code_s
    if outside_s is None or own_s is None or loop.cycle_s <= 0 or outside_s < OUTSIDE_MIN * loop.cycle_s:
        return None
    functions = [f"{name} ({share:.0%})" for name, share in list(loop.functions.items())[:3]]
    if own_s < OUTSIDE_MIN * loop.cycle_s:
        return RuledOut(f"what the loop does outside modules is torch's own work: {', '.join(functions)}")
    return Suspect(
        strength=0.7,
        summary=f"{format_ms(own_s)} of every step is neither the model nor an operator of torch",
        evidence=(
            f"{format_ms(own_s)} of {format_ms(loop.cycle_s)} per step belong to no phase of training and not to torch",
            *([f"the loop's thread, outside torch: {loop.activities}"] if loop.activities else []),
            *(f"main thread: {name}" for name in functions),
        ),
        advice="Do it every few dozen steps, or in another process",
        saved_s=loop.saving(own_s),
    )
