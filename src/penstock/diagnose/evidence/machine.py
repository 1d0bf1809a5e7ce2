"""The machine while the loader was being iterated over: which processes used the cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.arrays import Spans, mean, weighted_median
from penstock.diagnose.evidence.loop import LoopEvidence
from penstock.diagnose.evidence.workers import WorkerEvidence
from penstock.recording.format import ProcessLoad, SystemLine
from penstock.recording.reader import Recording

SPARE_SHARE = 0.15
"""Share of the cores: with more than this free, processes do not compete for cores."""
QUEUED_SHARE = 0.15
"""Share of the workers' time in which they wait for a core: from this on it is a sign of too few usable cores."""
STEADY_MIN, SOME = 0.8, 1e-6
"""Share of a system line's time in steady steps from which on it describes them; any, where no line has as much."""
IDLE_CORES = 0.3
"""Free cores from which on waiting for a core means that the process may not use the free ones."""


@dataclass(frozen=True)
class MachineEvidence:
    """Means over the system lines, which the watcher records once a second, of steady steps.

    Cores in use and free are those while the loop waits: each line counts by the seconds of waiting in it, and the
    median is taken.
    """

    recording: Recording
    loop: LoopEvidence
    workers: WorkerEvidence

    @cached_property
    def cores(self) -> float:
        """Number of cores that the run may use."""
        machine = self.recording.run.machine
        usable, quota = max(1, machine.usable_cores), machine.quota_cores
        return min(usable, quota) if quota is not None and quota > 0 else usable

    @cached_property
    def system(self) -> tuple[SystemLine, ...]:
        """System lines whose time lies in steady steps: not in the warm-up, between epochs or in an evaluation.

        Of a run that has none, those that overlap with steady steps.
        """
        lines = self.recording.system
        at_s, seconds = np.array([line.at_s for line in lines]), np.array([line.seconds for line in lines])
        shares = self.loop.steady.within(at_s - seconds, at_s) / np.maximum(seconds, 1e-9)
        least = STEADY_MIN if (shares >= STEADY_MIN).any() else SOME
        return tuple(line for line, share in zip(lines, shares, strict=True) if share >= least)

    def while_waiting(self, value: Callable[[SystemLine], float]) -> float:
        """Return the median of a value over the time that the loop waited, see `LoopEvidence.stalls`."""
        at_s = np.array([line.at_s for line in self.system])
        began_s = at_s - np.array([line.seconds for line in self.system])
        return weighted_median(
            np.array([value(line) for line in self.system]), Spans(*self.loop.stalls).within(began_s, at_s)
        )

    # -- all processes ---------------------------------------------------------------------------------------------

    @cached_property
    def run_cpu(self) -> float:
        """Cores that the whole run kept busy: by the system lines, else by the times of loop and workers."""
        if any(line.processes for line in self.system):
            return self.while_waiting(_run_cpu)
        steady_s = self.loop.steady_s
        return self.workers.fetch_cores + float(self.loop.busy_s.sum()) / steady_s if steady_s > 0 else 0.0

    @cached_property
    def others_cpu(self) -> float:
        """Cores that processes outside the run used."""
        return mean([line.others_cpu for line in self.system])

    @cached_property
    def free_cores(self) -> float:
        """Cores that no process used."""
        if any(line.processes for line in self.system):
            return self.while_waiting(lambda line: max(0.0, self.cores - _run_cpu(line) - line.others_cpu))
        return max(0.0, self.cores - self.run_cpu - self.others_cpu)

    @cached_property
    def throttled(self) -> float:
        """Share of the time in which the CPU quota of the cgroup stopped the run."""
        return mean([line.throttled for line in self.system if line.throttled is not None])

    @cached_property
    def competitors(self) -> float:
        """Number of processes outside the run that always want a core, estimated from the cores they got.

        Where cores are short, all processes that want one get the same share; where they are not, all get what they
        want.
        """
        if self.free_cores > SPARE_SHARE * self.cores or self.run_cpu <= 0:
            return self.others_cpu
        wanted = mean([sum(p.cpu + p.queue for p in line.processes) for line in self.system if line.processes])
        return self.others_cpu * max(1.0, wanted / self.run_cpu)

    # -- the main process ------------------------------------------------------------------------------------------

    @cached_property
    def loop_cpu(self) -> float:
        """Share of its time that the loop's thread computed, in the loader and outside."""
        return mean([p.thread_cpu for p in self.main_processes if p.thread_cpu is not None])

    @cached_property
    def main_queue(self) -> float:
        """Share of its time that the main process waited for a core."""
        return mean([process.queue for process in self.main_processes])

    @cached_property
    def queue_per_cpu(self) -> float | None:
        """Seconds that the loop waits for a core for each second on one; None if its CPU time was not recorded."""
        return self.main_queue / self.loop_cpu if self.loop_cpu > 0 else None

    @cached_property
    def other_threads_cpu(self) -> float:
        """Cores that the threads of the main process use besides the loop's thread."""
        used = [p.cpu - p.thread_cpu for p in self.main_processes if p.thread_cpu is not None]
        return max(0.0, mean(used))

    @cached_property
    def main_processes(self) -> list[ProcessLoad]:
        """Readings of the main process, one for each system line."""
        return [process for line in self.system for process in line.processes if process.worker is None]

    # -- the worker processes --------------------------------------------------------------------------------------

    @cached_property
    def worker_processes(self) -> list[ProcessLoad]:
        """Readings of worker processes, of all workers and system lines together."""
        return [p for line in self.system for p in line.processes if p.worker is not None and p.worker >= 0]

    @cached_property
    def workers_cpu(self) -> float:
        """Cores that all workers use together, with all their threads."""
        lines = sum(bool(line.processes) for line in self.system)
        return sum(process.cpu for process in self.worker_processes) / max(1, lines)

    @cached_property
    def helper_threads_cpu(self) -> float:
        """Cores that one worker uses besides the thread that makes its batches."""
        used = [process.cpu - process.thread_cpu for process in self.worker_processes if process.thread_cpu is not None]
        return max(0.0, mean(used))

    @cached_property
    def threads_per_worker(self) -> float:
        """CPU time of worker processes, as a multiple of the CPU time of the thread that makes the batches."""
        main_thread = sum(process.thread_cpu or 0.0 for process in self.worker_processes)
        return sum(process.cpu for process in self.worker_processes) / main_thread if main_thread > 0 else 1.0

    @cached_property
    def worker_cores(self) -> float:
        """Number of cores that one worker may run on; no more than the run may use."""
        allowed = [process.cores for process in self.worker_processes if process.cores is not None]
        return min(self.cores, float(np.median(allowed))) if allowed else self.cores

    @cached_property
    def workers_pinned_together(self) -> bool:
        """Whether workers wait for cores while there are free ones that they may not use."""
        queued = self.workers.share_of_fetch(self.workers.queue_s) >= QUEUED_SHARE and self.free_cores >= IDLE_CORES
        return self.worker_cores < self.cores and queued


def _run_cpu(line: SystemLine) -> float:
    """Return the cores that all processes of the run used."""
    return sum(process.cpu for process in line.processes)
