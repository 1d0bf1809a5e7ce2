"""Gathers the evidence for each loader of a recording: arrays and derived numbers, the input of every rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from penstock.diagnose.evidence.contention import ContentionEvidence
from penstock.diagnose.evidence.ipc import IpcEvidence
from penstock.diagnose.evidence.loop import LoopEvidence, count_warm_up
from penstock.diagnose.evidence.machine import MachineEvidence
from penstock.diagnose.evidence.recreated_loaders import find_recreated_loaders
from penstock.diagnose.evidence.settings import SettingsEvidence
from penstock.diagnose.evidence.supply import SupplyEvidence
from penstock.diagnose.evidence.workers import WorkerEvidence
from penstock.model.workload import Workload
from penstock.recording.format import FetchLine, LoaderLine, StepLine
from penstock.recording.reader import Recording

WORKLOAD_BATCHES_MIN = 3
"""Least number of batches that a workload for the simulator is made of."""


@dataclass(frozen=True)
class Evidence:
    """The evidence that a recording gives for one loader, in parts: each part has its own file in this package."""

    recording: Recording
    loader: LoaderLine
    settings: SettingsEvidence
    loop: LoopEvidence
    workers: WorkerEvidence
    machine: MachineEvidence
    supply: SupplyEvidence
    ipc: IpcEvidence
    contention: ContentionEvidence

    @cached_property
    def starved_share(self) -> float:
        """Share of the steady time in which the loop waited for a batch that was not ready.

        Of a run that lives on batches made ahead it is that of a longer run.
        """
        beyond = np.maximum(self.loop.wait_s - self.ipc.receive_s, 0.0)
        measured = float(beyond.sum()) / self.loop.steady_s if self.loop.steady_s > 0 else 0.0
        return max(measured, self.supply.shortage) if self.supply.lives_on_stock else measured

    @cached_property
    def in_use(self) -> dict[str, object]:
        """The settings of the step that the training uses already, by name, see hooks/in_use.py of the watcher."""
        events = (event.detail for event in self.recording.events if event.what == "in_use")
        return {name: value for detail in events for name, value in detail.items()}

    @property
    def waited_s(self) -> float:
        """Seconds of steady time that are waited for data; of a run that lives on stock, those of a longer run."""
        return self.starved_share * self.loop.steady_s

    @property
    def rate_cycle_s(self) -> float:
        """Mean seconds from one batch to the next, the base of gains; of a longer run, if this one lives on stock."""
        if not self.supply.lives_on_stock:
            return self.loop.cycle_s
        return max(self.loop.cycle_s, 1 / self.supply.supply_batches_s)

    @cached_property
    def workload(self) -> Workload | None:
        """The run as input of the simulator, batch by batch; None if too few batches were recorded by workers."""
        known = min(len(self.workers.fetches), len(self.loop.steps))
        if known < WORKLOAD_BATCHES_MIN:
            return None
        machine, step_s = self.machine, self.contention.step_s[:known]
        return Workload(
            workers=self.workers.effective_workers,
            prefetch=self.settings.prefetch_factor,
            in_order=self.settings.in_order,
            cores=machine.cores - machine.free_cores if machine.workers_pinned_together else machine.cores,
            competitors=machine.competitors,
            cpu_s=self.workers.cpu_s[:known] + self.ipc.send_cpu_s,
            latency_s=self.workers.blocked_s[:known],
            receive_s=np.full(known, self.ipc.receive_cpu_s),
            step_s=step_s,
            step_cpu_s=step_s * self.contention.step_cpu,
            step_threads=self.contention.step_threads,
            worker=self.workers.batch_worker[:known],
        )

    def with_steps(self, steps: Sequence[StepLine]) -> Evidence:
        """Return the same evidence for these steps only, all of them taken as steady."""
        return _build(self.recording, self.loader, _Steps(steps), self.workers.fetches, self.settings.times_created)


def gather(recording: Recording) -> tuple[Evidence, ...]:
    """Return the evidence for every loader that was iterated over, the one with the longest waits first."""
    recreated = find_recreated_loaders(recording)
    joined = recreated.join(recording)
    found = [
        _loader_evidence(joined, loader, recreated.times_created(number)) for number, loader in joined.loaders.items()
    ]
    with_steps = [evidence for evidence in found if evidence.loop.all_steps]
    return tuple(sorted(with_steps, key=lambda evidence: -max(evidence.waited_s, float(evidence.loop.wait_s.sum()))))


def _loader_evidence(recording: Recording, loader: LoaderLine, times_created: int) -> Evidence:
    steps = [step for step in recording.steps if step.loader == loader.loader]
    steady, first = [step for step in steps if step.batch > 0], [step for step in steps if step.batch == 0]
    fetches = [fetch for fetch in recording.fetches if fetch.loader == loader.loader]
    in_order = sorted(fetches, key=lambda fetch: (fetch.epoch, fetch.batch))
    evidence = _build(recording, loader, _Steps(steady, first), in_order, times_created)
    if evidence.settings.num_workers == 0 and len(steady) < len(first):
        # The script creates an iterator for each batch, and there are no workers to start: every step is steady.
        return _build(recording, loader, _Steps(steps), in_order, times_created)
    warm_up = count_warm_up(evidence.loop.busy_s)
    if not warm_up:
        return evidence
    began_s = steady[warm_up].at_s
    later = [fetch for fetch in in_order if fetch.at_s + fetch.fetch_s >= began_s]
    kept = later if len(later) >= WORKLOAD_BATCHES_MIN else in_order
    return _build(recording, loader, _Steps(steady[warm_up:], first, steady[:warm_up]), kept, times_created)


class _Steps(NamedTuple):
    """The steps of one loader, by their kind."""

    steady: Sequence[StepLine]
    first: Sequence[StepLine] = ()
    warm_up: Sequence[StepLine] = ()


def _build(
    recording: Recording,
    loader: LoaderLine,
    steps: _Steps,
    fetches: Sequence[FetchLine],
    times_created: int,
) -> Evidence:
    """Make the parts in the order in which they depend on each other."""
    settings = SettingsEvidence(loader, fetches, times_created)
    outstanding = settings.num_workers * settings.prefetch_factor
    kinds = tuple(steps.steady), tuple(steps.first), tuple(steps.warm_up)
    loop = LoopEvidence(recording, loader.loader, *kinds, outstanding)
    workers = WorkerEvidence(recording, loader, tuple(fetches), settings, loop)
    machine = MachineEvidence(recording, loop, workers)
    supply = SupplyEvidence(settings, loop, workers)
    ipc = IpcEvidence(settings, loop, workers, machine)
    contention = ContentionEvidence(settings, loop, workers, machine, ipc)
    return Evidence(recording, loader, settings, loop, workers, machine, supply, ipc, contention)
