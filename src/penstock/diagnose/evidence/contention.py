"""The time that the training loop loses to contention: waiting for a core and for Python's interpreter lock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.arrays import mean
from penstock.core.types import Floats
from penstock.diagnose.evidence.ipc import BUSY_THREADS, KNOWN_MIN, RECEIVE_MIN_S, IpcEvidence
from penstock.diagnose.evidence.loop import LoopEvidence
from penstock.diagnose.evidence.machine import MachineEvidence
from penstock.diagnose.evidence.settings import SettingsEvidence
from penstock.diagnose.evidence.workers import WorkerEvidence

LOCKED_MIN = 0.1
"""Share of the cycle that the loop waits for the interpreter: less may be chance."""
QUICKEST = 0.02
"""Quantile of the steps: where a lock delays some steps, these got it at once."""
QUEUED_MAX = 0.95
"""Largest share of a step that is taken for waiting for a core."""


@dataclass(frozen=True)
class ContentionEvidence:
    """The step of the training loop, with its waiting for a core and for the interpreter lock separated from it."""

    settings: SettingsEvidence
    loop: LoopEvidence
    workers: WorkerEvidence
    machine: MachineEvidence
    ipc: IpcEvidence

    @cached_property
    def interpreter_s(self) -> float:
        """Mean seconds of a step that the loop waited for the interpreter lock; 0 where that cannot be known.

        Evidence is needed that other threads of the main process use a core, and that the loop waited for the lock: in
        its step it was ready to run (not in a call that waits), could have had a core, and yet did not compute; in the
        loader its batch was ready, and receiving it took longer than it can. Stack samples are few, so once this is
        certain the estimate is all that steps take beyond the quickest ones, and waits beyond what receiving costs.
        """
        if not self.loop.thread_states or self.machine.other_threads_cpu < BUSY_THREADS:
            return 0.0
        cycle_s = self.loop.cycle_s
        computed_s = self.machine.loop_cpu * cycle_s
        runnable_s = self.loop.thread_states.get("running", 0.0) * mean(self.loop.busy_s)
        in_loader_s = self._interpreter_in_loader_s(computed_s)
        sampled_s = max(0.0, runnable_s - computed_s - self.machine.main_queue * cycle_s) + in_loader_s
        if sampled_s < LOCKED_MIN * cycle_s:
            return sampled_s
        beyond_s = mean(self.loop.busy_s) - float(np.quantile(self.loop.busy_s, QUICKEST))
        if self.ipc.receive_s > computed_s:
            beyond_s += max(0.0, mean(self.loop.wait_s) - RECEIVE_MIN_S)
        else:
            beyond_s += in_loader_s
        return max(sampled_s, beyond_s)

    def _interpreter_in_loader_s(self, computed_s: float) -> float:
        receiving = self.loop.wait_s[self.loop.all_ready]
        if len(receiving) < KNOWN_MIN:
            return 0.0
        quickest = float(np.quantile(receiving, 0.1))
        beyond_s = float(np.maximum(receiving - quickest, 0.0).sum()) / len(self.loop.steps)
        return max(beyond_s, self.ipc.receive_s - computed_s)

    @cached_property
    def step_s(self) -> Floats:
        """Seconds of each step without waiting for a core, which the simulator adds by itself."""
        busy_s, queue_per_cpu = self.loop.busy_s, self.machine.queue_per_cpu
        if queue_per_cpu is None:
            return busy_s * (1 - min(QUEUED_MAX, self.machine.main_queue))
        computing_s = max(0.0, self.machine.loop_cpu * self.loop.cycle_s - self.ipc.receive_cpu_s)
        mean_s = mean(busy_s)
        if mean_s <= 0:
            return busy_s
        without = busy_s * (1 - min(QUEUED_MAX, queue_per_cpu * computing_s / mean_s))
        # Part of the waiting may have been in the loader: no step is quicker than those that did not wait at all.
        return np.maximum(without, np.minimum(busy_s, np.quantile(busy_s, QUICKEST)))

    @cached_property
    def step_cpu(self) -> float:
        """Share of the step that needs a core; 1 if that was not recorded, so that no device is assumed to compute."""
        used = [process.cpu for process in self.machine.main_processes]
        step_s = mean(self.step_s)
        if not used or step_s <= 0:
            return 1.0
        loading_s = mean(self.workers.cpu_s) if self.settings.num_workers == 0 else self.ipc.receive_cpu_s
        return min(1.0, max(0.0, mean(used) * self.loop.cycle_s - loading_s) / step_s)

    @cached_property
    def step_threads(self) -> float:
        """Number of threads that compute in a step: torch's own want the same cores as the workers.

        Threads that compute while the loop waits for the interpreter lock are others.
        """
        step_s = mean(self.step_s)
        if step_s <= 0 or self.interpreter_s >= LOCKED_MIN * self.loop.cycle_s:
            return 1.0
        return min(1 + self.machine.other_threads_cpu * self.loop.cycle_s / step_s, max(1.0, self.machine.cores))
