"""The cost of moving a ready batch from the worker that made it to the training loop: copy, pickle and unpickle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.arrays import mean
from penstock.core.types import Floats
from penstock.diagnose.evidence.loop import LoopEvidence
from penstock.diagnose.evidence.machine import MachineEvidence
from penstock.diagnose.evidence.settings import SettingsEvidence
from penstock.diagnose.evidence.workers import WorkerEvidence

BUSY_THREADS = 0.2
"""Cores that the main process's other threads use: below it they do not hold up the loop."""
RECEIVE_MIN_S = 0.001
"""Seconds that receiving a batch from another process takes at least, however small the batch is."""
KNOWN_MIN = 5
"""Least number of steps from which a quantile is taken."""
RECEIVE_QUANTILE = 0.4
"""Quantile of the measured receive times: any disturbance makes one longer, so the median would be too long."""
READY_QUANTILE = 0.25
"""Quantile of the waits of steps that found some batch ready, which need not have been the requested one."""
IDLE_WORKER_QUANTILE = 0.25
"""Quantile of the measured receive times whose worker had nothing else to do."""


@dataclass(frozen=True)
class IpcEvidence:
    """Seconds per batch of moving it between processes, on average."""

    settings: SettingsEvidence
    loop: LoopEvidence
    workers: WorkerEvidence
    machine: MachineEvidence

    @cached_property
    def receive_s(self) -> float:
        """Seconds to receive a ready batch, waiting for a core included; 0 if that is not known.

        It is limited to what the loop's thread computed or waited for a core: to rebuild a tensor the loop requests the
        memory from the worker, so a worker that has no core to answer is waited for like one whose batch is not ready.
        The limit does not apply if another thread of the main process computes, because that thread may hold the
        interpreter lock while the loop receives the batch.
        """
        loop_cpu = self.machine.loop_cpu
        if self.machine.other_threads_cpu >= BUSY_THREADS or not loop_cpu:
            return self._measured_s
        # The loop spent in the loader what it computed beyond its steps. This is a lower limit where the measured time
        # is too short: where every second wait is for two batches at once, none of them is typical.
        least_s = loop_cpu * self.loop.cycle_s - mean(self.loop.busy_s) if self.settings.num_workers else 0.0
        return min(max(least_s, self._measured_s), (loop_cpu + self.machine.main_queue) * self.loop.cycle_s)

    @cached_property
    def _measured_s(self) -> float:
        """Seconds from the arrival of a batch until the loop has it.

        Known where the wait in the queue was timed. Else taken from steps that found all outstanding batches ready;
        where there are few of those, from the shorter waits of steps that found any batch ready.
        """
        if len(self._timed_s) >= KNOWN_MIN:
            return float(np.quantile(self._timed_s, RECEIVE_QUANTILE))
        all_ready = self.loop.wait_s[self.loop.all_ready]
        if len(all_ready) >= KNOWN_MIN:
            return float(np.median(all_ready))
        some_ready = self.loop.wait_s[self.loop.ready_batches > 0]
        return float(np.quantile(some_ready, READY_QUANTILE)) if len(some_ready) >= KNOWN_MIN else 0.0

    @cached_property
    def _timed_s(self) -> Floats:
        """Receive times of the steps whose wait in the queue was timed."""
        idle = np.array([np.nan if step.idle_s is None else step.idle_s for step in self.loop.steps])
        known = np.isfinite(idle)
        received: Floats = np.maximum(self.loop.wait_s[known] - idle[known], 0.0)
        return received

    @cached_property
    def receive_cpu_s(self) -> float:
        """Seconds to receive a batch when a core is free: it is all computing, so it waits for a core in proportion."""
        return self._with_free_core(self.receive_s)

    @cached_property
    def undisturbed_receive_cpu_s(self) -> float:
        """The same from a worker that answers at once, which is not, for instance, collecting garbage."""
        if not len(self._timed_s):
            return self.receive_cpu_s
        return min(self.receive_cpu_s, self._with_free_core(float(np.quantile(self._timed_s, IDLE_WORKER_QUANTILE))))

    @cached_property
    def send_cpu_s(self) -> float:
        """Seconds that sending a batch costs the worker, on threads besides the one that makes batches.

        It is limited to what receiving costs: other threads that compute more than that do something else.
        """
        beyond_s = self.machine.workers_cpu * self.loop.cycle_s - mean(self.workers.cpu_s)
        return min(self.receive_cpu_s, max(0.0, beyond_s))

    def _with_free_core(self, seconds: float) -> float:
        return seconds / (1 + (self.machine.queue_per_cpu or 0.0))
