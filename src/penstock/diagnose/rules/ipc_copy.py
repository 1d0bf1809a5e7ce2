"""Taking a batch that lies ready costs the training loop real time.

Batches come from worker processes through shared memory and a pipe: large ones are copied into shared memory and
mapped again, arrays that are no tensors are pickled whole, and the main process unpickles them, on the loop's own
thread.

Looks like a slow worker, but the batch was ready when the loop asked.

Remedy: tensors instead of arrays or lists in the batch, smaller dtypes (uint8 instead of float32, normalise on the
GPU), `pin_memory=True` so that another thread takes them; or penstock.Loader, where no array crosses a pipe.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.ipc import RECEIVE_MIN_S
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

LEAST = 0.08
"""Share of the cycle."""


def check(evidence: Evidence) -> Answer:
    """Waits with a batch at hand are long."""
    sampler = mean(evidence.loop.phase_s("sampler"))
    taking = max(0.0, evidence.ipc.receive_cpu_s - sampler - RECEIVE_MIN_S)
    if evidence.settings.num_workers == 0 or evidence.loop.cycle_s <= 0 or taking < LEAST * evidence.loop.cycle_s:
        return None
    if evidence.contention.interpreter_s > taking / 2:
        return RuledOut(
            f"another thread held the interpreter for {format_ms(evidence.contention.interpreter_s)} of a step"
        )
    return Suspect(
        strength=0.85,
        summary=f"Taking a finished batch costs {format_ms(taking)} a step",
        evidence=(
            f"with a batch ready, the loop still spent {format_ms(taking)} of {format_ms(evidence.loop.cycle_s)} "
            "per step to get it",
        ),
        advice="Send tensors, not lists or arrays; smaller dtypes; pin_memory=True; or penstock.Loader",
        remedy=lambda workload: workload.replace(receive_s=workload.receive_s - min(taking, workload.receive_s.min())),
    )
