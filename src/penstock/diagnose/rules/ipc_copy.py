"""Receiving a batch that is ready costs the training loop time.

Batches come from worker processes through shared memory and a pipe. Large tensors are copied into shared memory and
mapped again; arrays that are not tensors are pickled whole. The main process unpickles them, on the thread of the loop.

Evidence: the loop takes long to receive a batch even if the batch was ready when the loop requested it.

Similar causes: a slow worker (there, the batch is not ready) and `main_process_python` (there, another thread holds the
interpreter lock while the loop receives the batch).

Remedy: tensors instead of arrays or lists in the batch; smaller dtypes (uint8 instead of float32, normalised on the
GPU); `pin_memory=True`, so that another thread receives the batches; or penstock.Loader, where no array crosses a pipe.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.ipc import RECEIVE_MIN_S
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

RECEIVE_MIN = 0.08
"""Share of the time per step that receiving a batch takes."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if receiving ready batches takes long."""
    cycle_s, interpreter_s = evidence.loop.cycle_s, evidence.contention.interpreter_s
    sampler_s = mean(evidence.loop.phase_s("sampler"))
    receive_s = max(0.0, evidence.ipc.receive_cpu_s - sampler_s - RECEIVE_MIN_S)
    if evidence.settings.num_workers == 0 or cycle_s <= 0 or receive_s < RECEIVE_MIN * cycle_s:
        return None
    if interpreter_s > receive_s / 2:
        return RuledOut(f"another thread held the interpreter for {format_ms(interpreter_s)} of a step")
    return Suspect(
        strength=0.85,
        summary=f"Receiving a finished batch costs {format_ms(receive_s)} a step",
        evidence=(
            f"with a batch ready, the loop still spent {format_ms(receive_s)} of {format_ms(cycle_s)} per step "
            "to get it",
        ),
        advice="Send tensors, not lists or arrays; smaller dtypes; pin_memory=True; or penstock.Loader",
        remedy=lambda workload: workload.replace(
            receive_s=workload.receive_s - min(receive_s, workload.receive_s.min())
        ),
    )
