"""What a recording says about one loader, as arrays and a few derived numbers: all that rules look at."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.core.format import format_ms
from penstock.diagnose.evidence.loop import UNKNOWN
from penstock.diagnose.evidence.machine import MachineEvidence
from penstock.diagnose.evidence.recreated_loaders import find_recreated_loaders
from penstock.diagnose.evidence.settings import Floats
from penstock.model.workload import Workload
from penstock.recording.format import LoaderLine
from penstock.recording.reader import Recording

BUSY_THREADS = 0.2
"""Cores: a thread that computes less holds nobody up."""
ENOUGH_ASKS = 5
LEAST_TAKING_S = 0.001
"""What taking a batch from another process costs anyway, however small it is."""
LEAST_LOCKED = 0.1
"""Share of the cycle that the loop waits for the interpreter: less may be chance."""
TAKEN = 0.4
"""Of the takings: whatever is in the way makes them longer, so the median is too much."""
QUICK = 0.25
"""Of the batches that were taken: these came from a worker that had nothing else to do."""
QUICKEST = 0.02
"""Of the steps: where a lock makes some wait, these had it at once."""


class Evidence(MachineEvidence):
    """One loader of one recording, and what follows from all that was seen of it."""

    @property
    def step_text(self) -> str:
        """The loop's own time per step, in words."""
        return f"{format_ms(float(np.median(self.busy_s)) if len(self.busy_s) else 0.0)} at the median"

    @cached_property
    def behind(self) -> float:
        """Share of the steady time in which the loop waited for a batch that was not ready."""
        beyond = np.maximum(self.wait_s - self.handover_s, 0.0)
        return float(beyond.sum()) / self.steady_s if self.steady_s > 0 else 0.0

    @cached_property
    def interpreter_s(self) -> float:
        """Of a step, on average, that the loop waited for the interpreter's lock; 0 where that cannot be told.

        Only where other threads of the main process use a core, and the loop was seen to wait: in the step it was
        ready to run (not in any call that waits), had a core in reach, and yet did not compute; in the loader its
        batch was at hand, and taking it took longer than it can. Looks are few, so once that is sure the whole of it
        is what steps take beyond the quickest, and waits beyond what taking a batch costs.
        """
        if not self.main_states or self.other_threads_cpu < BUSY_THREADS:
            return 0.0
        computed_s = self.loop_cpu * self.cycle_s
        ready_s = self.main_states.get("running", 0.0) * self.mean(self.busy_s)
        held_s = self._held_in_loader_s(computed_s)
        seen_s = max(0.0, ready_s - computed_s - self.main_queue * self.cycle_s) + held_s
        if seen_s < LEAST_LOCKED * self.cycle_s:
            return seen_s
        beyond_s = self.mean(self.busy_s) - float(np.quantile(self.busy_s, QUICKEST))
        if self.handover_s > computed_s:
            beyond_s += max(0.0, self.mean(self.wait_s) - LEAST_TAKING_S)
        else:
            beyond_s += held_s
        return max(seen_s, beyond_s)

    def _held_in_loader_s(self, computed_s: float) -> float:
        taking = self.wait_s[self.at_hand]
        if len(taking) < ENOUGH_ASKS:
            return 0.0
        quickest = float(np.quantile(taking, 0.1))
        beyond_s = float(np.maximum(taking - quickest, 0.0).sum()) / len(self.steps)
        return max(beyond_s, self.handover_s - computed_s)

    def gain_without(self, seconds: float, *phases: str) -> float:
        """Of a loop whose steps take so much less on the host; the device, without these phases, cannot go faster."""
        left = max(self.cycle_s - seconds, self.device_s(*phases), 0.05 * self.cycle_s)
        return self.cycle_s / left - 1 if left > 0 else 0.0

    @cached_property
    def line(self) -> float | None:
        """Seconds in line for a core, for each second on one, of the loop's thread; None where nobody looked."""
        return self.main_queue / self.loop_cpu if self.loop_cpu > 0 else None

    @cached_property
    def taking_s(self) -> float:
        """What taking a batch costs with a core at hand: it is all computing, so the line hits it in full."""
        return self._with_a_core(self.handover_s)

    @cached_property
    def sending_s(self) -> float:
        """What handing a batch over costs the worker, on threads beside the one that makes it: as taking it at most.

        More than that computes something else.
        """
        beyond_s = self.workers_cpu * self.cycle_s - self.mean(self.cpu_s)
        return min(self.taking_s, max(0.0, beyond_s))

    @cached_property
    def taking_at_once_s(self) -> float:
        """The same from a worker that answers at once; one that collects its garbage, say, does not."""
        if not len(self._takings_s):
            return self.taking_s
        return min(self.taking_s, self._with_a_core(float(np.quantile(self._takings_s, QUICK))))

    def _with_a_core(self, seconds: float) -> float:
        return seconds / (1 + (self.line or 0.0))

    @cached_property
    def own_s(self) -> Floats:
        """The step without standing in line for a core: the model has its own line."""
        if self.line is None:
            return self.busy_s * (1 - min(0.95, self.main_queue))
        computing_s = max(0.0, self.loop_cpu * self.cycle_s - self.taking_s)
        mean = self.mean(self.busy_s)
        if mean <= 0:
            return self.busy_s
        without = self.busy_s * (1 - min(0.95, self.line * computing_s / mean))
        # part of the line may have stood in the loader: no step is quicker than those that met nobody
        return np.maximum(without, np.minimum(self.busy_s, np.quantile(self.busy_s, QUICKEST)))

    @cached_property
    def step_cpu(self) -> float:
        """Share of the step that needs a core; 1 where nobody looked: then it does not wait for a device."""
        used = [process.cpu for process in self._main_looks]
        own = self.mean(self.own_s)
        if not used or own <= 0:
            return 1.0
        making_s = self.mean(self.cpu_s) if self.workers == 0 else self.taking_s
        return min(1.0, max(0.0, self.mean(used) * self.cycle_s - making_s) / own)

    @cached_property
    def handover_s(self) -> float:
        """What taking a batch costs when it lies there ready: copying and unpickling; 0 where that is not known.

        No more than what the loop's thread computed or stood in line for: to rebuild a tensor it asks the worker for
        the memory, and a worker without a core to answer on is waited for like one whose batch is not ready. A thread
        of the main process that holds the interpreter makes the taking itself long.
        """
        if self.other_threads_cpu >= BUSY_THREADS or not self.loop_cpu:
            return self._taken_s
        # what it computed beyond its steps it did in here: where every other wait takes two batches, none is usual
        least = self.loop_cpu * self.cycle_s - self.mean(self.busy_s) if self.workers else 0.0
        return min(max(least, self._taken_s), (self.loop_cpu + self.main_queue) * self.cycle_s)

    @cached_property
    def _taken_s(self) -> float:
        """From the batch's arrival until the loop has it.

        Known where the queue's own wait was timed. Else from asks that found all tasks done; where there are
        few of those, from the quicker ones that found something: what was ready need not be the batch whose
        turn it was.
        """
        if len(self._takings_s) >= ENOUGH_ASKS:
            return float(np.quantile(self._takings_s, TAKEN))
        at_hand = self.wait_s[self.at_hand]
        if len(at_hand) >= ENOUGH_ASKS:
            return float(np.median(at_hand))
        ready = self.wait_s[self.ready > 0]
        return float(np.quantile(ready, 0.25)) if len(ready) >= ENOUGH_ASKS else 0.0

    @cached_property
    def _takings_s(self) -> Floats:
        """Of the steps whose wait in the queue was timed."""
        idle = np.array([np.nan if step.idle_s is None else step.idle_s for step in self.steps])
        known = np.isfinite(idle)
        taken: Floats = np.maximum(self.wait_s[known] - idle[known], 0.0)
        return taken

    @cached_property
    def at_hand(self) -> NDArray[np.bool_]:
        """Steps whose batch had certainly arrived when the loop asked: everything that was given out had."""
        given = np.array([UNKNOWN if step.outstanding is None else step.outstanding for step in self.steps], np.int64)
        return (given > 0) & (self.ready >= given)

    @cached_property
    def workload(self) -> Workload | None:
        """The run as the simulator takes it, batch by batch; None without fetches."""
        known = min(len(self.fetches), len(self.steps))
        if known < 3:
            return None
        return Workload(
            workers=self.dealt_workers,
            prefetch=self.prefetch,
            in_order=self.in_order,
            cores=self.cores - self.free_cores if self.held_together else self.cores,
            burners=self.burners,
            cpu_s=self.cpu_s[:known] + self.sending_s,
            alone_s=self.blocked_s[:known],
            handover_s=np.full(known, self.taking_s),
            step_s=self.own_s[:known],
            step_cpu_s=self.own_s[:known] * self.step_cpu,
            worker=self.by[:known],
        )


def gather(recording: Recording) -> tuple[Evidence, ...]:
    """Every loader that was iterated over, the one that cost most waiting first."""
    renewals = find_recreated_loaders(recording)
    together = renewals.as_one(recording)
    found = [_of(together, loader, renewals.times_made(number)) for number, loader in together.loaders.items()]
    return tuple(sorted((e for e in found if e.steps or e.firsts), key=lambda e: -float(e.wait_s.sum())))


def _of(recording: Recording, loader: LoaderLine, times_made: int) -> Evidence:
    mine = [step for step in recording.steps if step.loader == loader.loader]
    fetches = [fetch for fetch in recording.fetches if fetch.loader == loader.loader]
    found = Evidence(
        recording,
        loader,
        steps=tuple(step for step in mine if step.batch > 0),
        firsts=tuple(step for step in mine if step.batch == 0),
        fetches=tuple(sorted(fetches, key=lambda fetch: (fetch.pass_, fetch.batch))),
        times_made=times_made,
    )
    if found.workers == 0 and len(found.steps) < len(found.firsts):  # a pass for each batch, and nothing to start
        return replace(found, steps=tuple(mine), firsts=())
    return found
