"""The machine while this loader was being iterated over: who had the cores."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from penstock.diagnose.evidence.workers import WorkerEvidence
from penstock.recording.format import Process, SystemLine

SPARE = 0.15
"""Of the cores: with more than that free nobody is in anybody's way."""
IN_LINE = 0.15
"""Share of the workers' time."""
IDLE = 0.3
"""Cores."""


class MachineEvidence(WorkerEvidence):
    """Means over the looks of once a second."""

    @cached_property
    def system(self) -> tuple[SystemLine, ...]:
        """Looks while this loader was being iterated over."""
        if not self.steps:
            return ()
        first, last = self.steps[0].at_s, self.steps[-1].at_s + self.steps[-1].wait_s + self.steps[-1].step_s
        return tuple(look for look in self.recording.system if first <= look.at_s <= last + look.seconds)

    @cached_property
    def others_cpu(self) -> float:
        """Cores that other people's processes took."""
        return self.mean([look.others_cpu for look in self.system])

    @cached_property
    def throttled(self) -> float:
        """Share of the time in which the cgroup's quota held the run back."""
        return self.mean([look.throttled for look in self.system if look.throttled is not None])

    @cached_property
    def main_queue(self) -> float:
        """Share of its time that the main process stood in line for a core."""
        return self.mean([process.queue for process in self._main_looks])

    @cached_property
    def burners(self) -> float:
        """Processes of others that always want a core, from what they got of it beside ours.

        Where cores are short everybody who wants one gets the same share; where they are not, all get what they want.
        """
        if self.free_cores > SPARE * self.cores or self.run_cores <= 0:
            return self.others_cpu
        wanting = self.mean([sum(p.cpu + p.queue for p in look.processes) for look in self.system if look.processes])
        return self.others_cpu * max(1.0, wanting / self.run_cores)

    @cached_property
    def worker_looks(self) -> list[Process]:
        """At worker processes, all of them together."""
        return [p for look in self.system for p in look.processes if p.worker is not None and p.worker >= 0]

    @cached_property
    def threads_per_worker(self) -> float:
        """CPU that worker processes used, over what their own thread used, which is the one that makes batches."""
        own = sum(process.thread_cpu or 0.0 for process in self.worker_looks)
        return sum(process.cpu for process in self.worker_looks) / own if own > 0 else 1.0

    @cached_property
    def helpers_cpu(self) -> float:
        """Cores that the other threads of one worker use."""
        looks = [process.cpu - process.thread_cpu for process in self.worker_looks if process.thread_cpu is not None]
        return max(0.0, self.mean(looks))

    @cached_property
    def workers_cpu(self) -> float:
        """Cores that all workers use, with all their threads."""
        looks = sum(bool(look.processes) for look in self.system)
        return sum(process.cpu for process in self.worker_looks) / max(1, looks)

    @cached_property
    def worker_cores(self) -> float:
        """That one worker may run on: no more than the run."""
        allowed = [process.cores for process in self.worker_looks if process.cores is not None]
        return min(self.cores, float(np.median(allowed))) if allowed else self.cores

    @cached_property
    def held_together(self) -> bool:
        """Whether workers stand in line for cores while there are free ones that they may not use."""
        lines = self.share_of_fetch(self.queue_s) >= IN_LINE and self.free_cores >= IDLE
        return self.worker_cores < self.cores and lines

    @cached_property
    def run_cores(self) -> float:
        """Cores the whole run kept busy; by the machine's count where there is one, else loop and workers."""
        looks = [sum(process.cpu for process in look.processes) for look in self.system if look.processes]
        if looks:
            return self.mean(looks)
        return self.decode_cores + float(self.busy_s.sum()) / self.steady_s if self.steady_s > 0 else 0.0

    @cached_property
    def free_cores(self) -> float:
        """That nobody used."""
        return max(0.0, self.cores - self.run_cores - self.others_cpu)

    @cached_property
    def other_threads_cpu(self) -> float:
        """Cores that the main process's other threads use: the loop's own thread left out."""
        looks = [p.cpu - p.thread_cpu for p in self._main_looks if p.thread_cpu is not None]
        return max(0.0, self.mean(looks))

    @cached_property
    def loop_cpu(self) -> float:
        """Share of its time that the loop's thread computed, in the loader and out of it."""
        return self.mean([p.thread_cpu for p in self._main_looks if p.thread_cpu is not None])

    @cached_property
    def _main_looks(self) -> list[Process]:
        return [process for look in self.system for process in look.processes if process.worker is None]
