"""`penstock.plan_for`: a plan for a dataset or a DataLoader, by the model. One worker is timed, nothing else is run.

Where `penstock.tune` goes on to measure the settings that the model names, this stops and says what it knows.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from penstock.core.cgroups import free_bytes
from penstock.core.plan import Plan, Profile
from penstock.plan.fingerprint import fingerprint
from penstock.plan.from_probes import TORCH_DEFAULTS, MeasuredParts, plan_from_parts
from penstock.plan.memory import shared_free_bytes
from penstock.plan.profiles import profile_goal
from penstock.plan.scenario import LoaderSettings, TrainingContext, WorkerStartCost
from penstock.recording.format import Machine
from penstock.tuner.loader_copy import HAS_IN_ORDER, is_iterable, pattern_of, untouched
from penstock.tuner.measure import Step
from penstock.tuner.result import PREFETCH
from penstock.tuner.search import WorkerLimit, worker_limit, workload_of
from penstock.tuner.tune import check_question
from penstock.tuner.tuning_run import TuningQuestion, TuningRun
from penstock.tuner.worker_cost import WorkerCost
from penstock.watcher.dataloader.main_process import describe
from penstock.watcher.loader_views import length_of
from penstock.watcher.machine.facts import machine_facts

SECONDS = 30.0
"""Of which one worker is timed for a tenth, as in a tuning."""


def plan_for(
    source: Any,
    *,
    batch_size: int | None = None,
    step: Step | None = None,
    step_s: float | None = None,
    profile: Profile = "balanced",
    seconds: float = SECONDS,
) -> Plan:
    """What to set, why, and what it should give: for a dataset with its `batch_size`, or for a DataLoader as it is set.

    `step` is called with a batch some times; or `step_s` says how long the device is busy with one. With neither, the
    plan is for loading alone. Gains count from the loader's own settings, or from torch's defaults.

        print(penstock.plan_for(dataset, batch_size=64, step_s=0.05).changes)
    """
    ways = profile_goal(profile)
    check_question(step, step_s, seconds)
    pattern = pattern_of(source, batch_size)
    with untouched(pattern):
        question = TuningQuestion(step=step, step_s=step_s, ways=ways, seconds=seconds)
        parts = _ModelOnlyTuning(pattern, question, given=pattern is source).parts()
    return plan_from_parts(parts, profile)


class _ModelOnlyTuning(TuningRun):
    """A tuning that ends where the model has all it needs."""

    def parts(self) -> MeasuredParts:
        """One worker's batches, and the step."""
        pattern, service = self._pattern, self._serve()
        cost = self._step_cost(service)
        room = worker_limit(self._trials, service, self._ways.memory_share)
        settings = TORCH_DEFAULTS if self._given is None else _settings(pattern)
        workload = workload_of(pattern, service, cost).replace(
            workers=settings.num_workers, prefetch=settings.prefetch_factor
        )
        machine = machine_facts()
        return MeasuredParts(
            source="dataset",
            workload=workload,
            settings=settings,
            context=_place(pattern, service, room, machine),
            samples_per_batch=self._trials.samples_per_batch,
            fingerprint=fingerprint(machine, describe(pattern, 0, requested={})),
            notes=(room.why,) if room.why else (),
        )


def _settings(pattern: DataLoader[Any]) -> LoaderSettings:
    context = pattern.multiprocessing_context
    return LoaderSettings(
        num_workers=pattern.num_workers,
        prefetch_factor=pattern.prefetch_factor or PREFETCH,
        pin_memory=bool(pattern.pin_memory),
        persistent_workers=pattern.persistent_workers,
        in_order=bool(getattr(pattern, "in_order", True)),
        multiprocessing_context=None if context is None else context.get_start_method(),
    )


def _place(pattern: DataLoader[Any], service: WorkerCost, room: WorkerLimit, machine: Machine) -> TrainingContext:
    """This machine, now. What an iterable dataset gives to how many workers is known only as far as it was tried."""
    iterable = is_iterable(pattern)
    making_s = float((service.cpu_s + service.waiting_s).mean())
    return TrainingContext(
        platform=machine.platform,
        gpus=len(machine.gpus),
        has_in_order=HAS_IN_ORDER,
        free_bytes=free_bytes(),
        shared_free_bytes=shared_free_bytes(),
        batch_bytes=service.batch_bytes,
        worker_bytes=service.worker_bytes,
        worker_start=WorkerStartCost.measured(service.first_s, 0.0, making_s, 1),
        epoch_batches=None if iterable else length_of(pattern),
        dataset_workers=room.most if iterable else None,
    )
