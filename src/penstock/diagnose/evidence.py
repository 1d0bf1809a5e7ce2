"""What a recording says about one loader, as arrays and a few derived numbers: all that rules look at.

The steady part only: the first wait of a pass is start-up (kept apart in `startups_s`), pauses that are none of the
loader's doing (evaluation, checkpoints) are taken out of the steps and kept in `pauses_s`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.model.workload import Workload
from penstock.recording.lines import Fetch, Loader, Process, Step, System, Whereabouts
from penstock.recording.load import Recording

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PAUSES = ("evaluation", "checkpoint")
"""Phases that are work of their own, not part of a step."""
TRAINING = frozenset({"forward", "backward", "optimizer"})
BUSY_THREADS = 0.2
"""Cores: a thread that computes less holds nobody up."""
SPARE = 0.15
"""Of the cores: with more than that free nobody is in anybody's way."""
ENOUGH_ASKS = 5
UNKNOWN = -1
"""In an array of counts."""
MOST_WORKERS, MOST_PREFETCH = 10_000, 10_000
"""More than that nobody has: the number is damage, and the simulator would hold a place for each."""


@dataclass(frozen=True)
class Evidence:
    """One loader of one recording."""

    recording: Recording
    loader: Loader
    steps: tuple[Step, ...]
    """Of this loader, in order, without the first of each pass."""
    firsts: tuple[Step, ...]
    """The first of each pass: their wait is start-up."""
    fetches: tuple[Fetch, ...]
    """Of this loader, by pass and batch."""

    # -- settings ----------------------------------------------------------------------------------------------

    def setting(self, name: str) -> object:
        """As in force; None where it is not known."""
        found = self.loader.settings.get(name)
        return None if found is None else found.in_force

    @cached_property
    def workers(self) -> int:
        """Worker processes; 0: the main process does it all."""
        number = self.setting("num_workers")
        if type(number) is int and 0 <= number <= MOST_WORKERS:
            return number
        return len({fetch.worker for fetch in self.fetches if fetch.worker >= 0})

    @cached_property
    def dealt_workers(self) -> int:
        """As many as could have made these batches had each made as many as the busiest: others had less to do.

        Where the dataset deals its samples to the workers itself, that may be fewer than there are.
        """
        counts = np.unique(self.by[self.by >= 0], return_counts=True)[1]
        if self.workers < 2 or self.loader.dataset_size is not None or not len(counts):
            return self.workers
        return max(1, min(self.workers, int(counts.sum() / counts.max() + 0.15)))

    @cached_property
    def prefetch(self) -> int:
        """Batches ahead per worker."""
        number = self.setting("prefetch_factor")
        return number if type(number) is int and 1 <= number <= MOST_PREFETCH else 2

    @cached_property
    def in_order(self) -> bool:
        """Whether batches come in the order of the sampler."""
        return self.setting("in_order") is not False

    @cached_property
    def cores(self) -> float:
        """That the run may use."""
        machine = self.recording.run.machine
        usable, quota = max(1, machine.usable_cores), machine.quota_cores
        return min(usable, quota) if quota is not None and quota > 0 else usable

    # -- the loop ----------------------------------------------------------------------------------------------

    @cached_property
    def wait_s(self) -> Floats:
        """In the loader, per step."""
        return np.array([step.wait_s for step in self.steps])

    @cached_property
    def pauses_s(self) -> Floats:
        """Evaluation and checkpoints, per step, wherever in the step they were."""
        return np.array([sum(s for path, s in step.phases.items() if _is_pause(path)) for step in self.steps])

    @cached_property
    def busy_s(self) -> Floats:
        """The loop's own time per step, pauses left out."""
        return np.maximum(np.array([step.step_s for step in self.steps]) - self.pauses_s, 0.0)

    @cached_property
    def ready(self) -> Ints:
        """Batches that had arrived when the loop asked; UNKNOWN where nobody could tell."""
        return np.array([UNKNOWN if step.ready is None else step.ready for step in self.steps], np.int64)

    @cached_property
    def awaited(self) -> Ints:
        """Whose batch it was."""
        return np.array([UNKNOWN if step.worker is None else step.worker for step in self.steps], np.int64)

    @cached_property
    def startups_s(self) -> Floats:
        """The first wait of each pass."""
        return np.array([step.wait_s for step in self.firsts])

    @cached_property
    def steady_s(self) -> float:
        """Time of all steady steps together."""
        return float(self.wait_s.sum() + self.busy_s.sum())

    @cached_property
    def total_s(self) -> float:
        """The same with start-up."""
        return self.steady_s + float(self.startups_s.sum()) + sum(step.step_s for step in self.firsts)

    @cached_property
    def cycle_s(self) -> float:
        """From batch to batch, on average."""
        return self.steady_s / max(1, len(self.steps))

    @cached_property
    def samples_per_batch(self) -> float:
        """NaN where nobody counted."""
        known = [step.samples for step in self.steps if step.samples]
        return float(np.mean(known)) if known else float("nan")

    @cached_property
    def wait_share(self) -> float:
        """Of the steady time, in the loader."""
        return float(self.wait_s.sum()) / self.steady_s if self.steady_s > 0 else 0.0

    @property
    def step_text(self) -> str:
        """The loop's own time per step, in words."""
        return f"{milliseconds(float(np.median(self.busy_s)) if len(self.busy_s) else 0.0)} at the median"

    @cached_property
    def behind(self) -> float:
        """Share of the steady time in which the loop waited for a batch that was not ready."""
        beyond = np.maximum(self.wait_s - self.handover_s, 0.0)
        return float(beyond.sum()) / self.steady_s if self.steady_s > 0 else 0.0

    @cached_property
    def starved(self) -> float | None:
        """Of the asks that found nothing ready, as a share of all asks; None where nobody could tell."""
        known = self.ready[self.ready != UNKNOWN]
        return float((known == 0).mean()) if len(known) else None

    @cached_property
    def slow(self) -> NDArray[np.bool_]:
        """Steps that waited long: over half the cycle, and far beyond the usual wait."""
        usual = float(np.median(self.wait_s)) if len(self.wait_s) else 0.0
        return self.wait_s > max(2 * usual, self.cycle_s / 2) if usual < self.cycle_s / 4 else self.wait_s > usual * 2

    def phase_s(self, name: str) -> Floats:
        """Seconds per step in a phase, however deep it lies in others."""
        return np.array(
            [
                sum(seconds for path, seconds in step.phases.items() if path.rsplit("/", 1)[-1] == name)
                for step in self.steps
            ]
        )

    @cached_property
    def rest_s(self) -> float | None:
        """Of a step, on average, in no phase at all; None where no phase of training was seen."""
        if not any(TRAINING & step.phases.keys() for step in self.steps):
            return None
        known = [
            sum(s for path, s in step.phases.items() if "/" not in path and path != "sampler") for step in self.steps
        ]
        return float(np.maximum(np.array([step.step_s for step in self.steps]) - known, 0.0).mean())

    @cached_property
    def interpreter_s(self) -> float:
        """Of a step, on average, that the loop waited for the interpreter's lock.

        In the step: it was ready to run (not in any call that waits), had a core in reach, and yet did not compute. In
        the loader: its batch was at hand, and taking it took longer than it can. Only where other threads of the main
        process use a core; 0 where that cannot be told.
        """
        if not self.main_states or self.other_threads_cpu < BUSY_THREADS:
            return 0.0
        running = self.main_states.get("running", 0.0) * self.mean(self.busy_s)
        in_step = max(0.0, running - (self.loop_cpu + self.main_queue) * self.cycle_s)
        taking = self.wait_s[self.at_hand]
        if len(taking) < ENOUGH_ASKS:
            return in_step
        quickest = float(np.quantile(taking, 0.1))
        in_loader = float(np.maximum(taking - quickest, 0.0).sum()) / len(self.steps)
        return in_step + max(in_loader, self.handover_s - self.loop_cpu * self.cycle_s)

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

    def device_s(self, *without: str) -> float:
        """Of a step, on average, on the device's own clock, without these phases; 0 where there is none."""
        return self.mean(
            [
                sum(seconds for path, seconds in step.device_phases.items() if "/" not in path and path not in without)
                for step in self.steps
            ]
        )

    def gain_without(self, seconds: float, *phases: str) -> float:
        """Of a loop whose steps take so much less on the host; the device, without these phases, cannot go faster."""
        left = max(self.cycle_s - seconds, self.device_s(*phases), 0.05 * self.cycle_s)
        return self.cycle_s / left - 1 if left > 0 else 0.0

    # -- the workers -------------------------------------------------------------------------------------------

    @cached_property
    def fetch_s(self) -> Floats:
        """What a batch takes its worker."""
        return np.array([fetch.fetch_s for fetch in self.fetches])

    @cached_property
    def cpu_s(self) -> Floats:
        """Of it, computing."""
        return np.array([fetch.cpu_s for fetch in self.fetches])

    @cached_property
    def queue_s(self) -> Floats:
        """Of it, ready to run without a core."""
        return np.array([fetch.queue_s for fetch in self.fetches])

    @cached_property
    def blocked_s(self) -> Floats:
        """Of it, waiting for something else: storage, network, a lock, a timer."""
        return np.maximum(self.fetch_s - self.cpu_s - self.queue_s, 0.0)

    @cached_property
    def collate_s(self) -> Floats:
        """Of it, putting samples together; clocks are read at different moments, a part is no more than the whole."""
        return np.array([min(fetch.collate_s, fetch.fetch_s) for fetch in self.fetches])

    @cached_property
    def by(self) -> Ints:
        """Who made it."""
        return np.array([fetch.worker for fetch in self.fetches], np.int64)

    @cached_property
    def mean_fetch_s(self) -> float:
        """Of a batch."""
        return self.mean(self.fetch_s)

    def share_of_fetch(self, seconds: Floats) -> float:
        """Of the workers' time."""
        total = float(self.fetch_s.sum())
        return float(seconds.sum()) / total if total > 0 else 0.0

    @cached_property
    def decode_cores(self) -> float:
        """Cores the workers kept busy with making batches."""
        return float(self.cpu_s.sum()) / self.steady_s if self.steady_s > 0 else 0.0

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
    def states(self) -> dict[str, float]:
        """Shares of the workers' time while making batches, by what they were in: see lines.Whereabouts."""
        return _shares(line.states for line in self._looks(main=False))

    def blocked_in(self, *states: str) -> float:
        """Share of the workers' blocked time spent in these states: running is not blocked."""
        blocked = {state: share for state, share in self.states.items() if state != "running"}
        total = sum(blocked.values())
        return sum(blocked.get(state, 0.0) for state in states) / total if total > 0 else 0.0

    @cached_property
    def main_states(self) -> dict[str, float]:
        """The same for the training loop's thread, outside the loader."""
        return _shares(line.states for line in self._looks(main=True))

    def functions(self, *, main: bool) -> dict[str, float]:
        """Shares by innermost function, most frequent first."""
        shares = _shares(line.functions for line in self._looks(main=main))
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def _looks(self, *, main: bool) -> Iterator[Whereabouts]:
        """At the training loop's thread, or at this loader's workers."""
        for line in self.recording.whereabouts:
            if (line.worker is None) == main and (main or line.loader == self.loader.loader):
                yield line

    # -- the machine -------------------------------------------------------------------------------------------

    @cached_property
    def system(self) -> tuple[System, ...]:
        """Looks while this loader was being iterated over."""
        if not self.steps:
            return ()
        first, last = self.steps[0].at_s, self.steps[-1].at_s + self.steps[-1].wait_s + self.steps[-1].step_s
        return tuple(look for look in self.recording.system if first <= look.at_s <= last + look.seconds)

    @staticmethod
    def mean(values: Sequence[float] | Floats) -> float:
        """0 of nothing."""
        return float(np.mean(values)) if len(values) else 0.0

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
    def own_s(self) -> Floats:
        """The step without standing in line for a core: the model has its own line."""
        return self.busy_s * (1 - min(0.95, self.main_queue))

    @cached_property
    def step_cpu(self) -> float:
        """Share of the step that needs a core; 1 where nobody looked: then it does not wait for a device."""
        used = [p.cpu for p in self._main_looks]
        return min(1.0, self.mean(used) / max(1e-9, 1 - self.wait_share)) if used else 1.0

    # -- the model ---------------------------------------------------------------------------------------------

    @cached_property
    def handover_s(self) -> float:
        """What taking a batch costs when it lies there ready: copying and unpickling; 0 where that is not known.

        Known where the queue's own wait was timed. Else from asks that found all tasks done; where there are
        few of those, from the quicker ones that found something: what was ready need not be the batch whose
        turn it was.
        """
        idle = np.array([np.nan if step.idle_s is None else step.idle_s for step in self.steps])
        if np.isfinite(idle).sum() >= ENOUGH_ASKS:
            return float(np.nanmedian(np.maximum(self.wait_s - idle, 0.0)))
        at_hand = self.wait_s[self.at_hand]
        if len(at_hand) >= ENOUGH_ASKS:
            return float(np.median(at_hand))
        ready = self.wait_s[self.ready > 0]
        return float(np.quantile(ready, 0.25)) if len(ready) >= ENOUGH_ASKS else 0.0

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
            cores=self.cores,
            burners=self.burners,
            cpu_s=self.cpu_s[:known],
            alone_s=self.blocked_s[:known],
            handover_s=np.full(known, self.handover_s),
            step_s=self.own_s[:known],
            step_cpu_s=self.own_s[:known] * self.step_cpu,
            worker=self.by[:known],
        )


def milliseconds(seconds: float) -> str:
    """For people: 0.42 ms, 12 ms, 3.1 s."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2f} ms"


def gather(recording: Recording) -> tuple[Evidence, ...]:
    """Every loader that was iterated over, the one that cost most waiting first."""
    found = [_of(recording, loader) for loader in recording.loaders.values()]
    return tuple(sorted((e for e in found if e.steps or e.firsts), key=lambda e: -float(e.wait_s.sum())))


def _of(recording: Recording, loader: Loader) -> Evidence:
    mine = [step for step in recording.steps if step.loader == loader.loader]
    fetches = [fetch for fetch in recording.fetches if fetch.loader == loader.loader]
    return Evidence(
        recording,
        loader,
        steps=tuple(step for step in mine if step.batch > 0),
        firsts=tuple(step for step in mine if step.batch == 0),
        fetches=tuple(sorted(fetches, key=lambda fetch: (fetch.pass_, fetch.batch))),
    )


def _is_pause(path: str) -> bool:
    """A pause inside another one is counted there."""
    *outer, name = path.split("/")
    return name in PAUSES and not any(other in PAUSES for other in outer)


def _shares(counts: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """Of all looks together, by name."""
    together: Counter[str] = Counter()
    for each in counts:
        together.update(each)
    total = together.total()
    return {name: count / total for name, count in together.items()} if total else {}
