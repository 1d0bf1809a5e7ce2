"""`penstock.plan_for`: a plan for a dataset or a DataLoader by the model; one worker is timed, and nothing else is run.

`penstock.tune` begins alike and goes on to measure the settings that the model proposes.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from penstock.core.plan import TORCH_PREFETCH_FACTOR, Plan, Profile
from penstock.plan.fingerprint import fingerprint
from penstock.plan.from_probes import TORCH_DEFAULTS, MeasuredParts, plan_from_parts
from penstock.plan.profiles import profile_goal
from penstock.plan.scenario import LoaderSettings, TrainingContext, WorkerStartCost
from penstock.plan.worker_count import WorkerResources
from penstock.recording.format import Machine
from penstock.tuner.loader_copy import HAS_IN_ORDER, preserve_rngs, template_loader
from penstock.tuner.measure import Step
from penstock.tuner.tune import check_request
from penstock.tuner.tuning_run import TuningCosts, TuningRequest, TuningRun
from penstock.watcher.dataloader.main_process import describe
from penstock.watcher.machine.facts import machine_facts

SECONDS = 30.0
"""Default time, of which one worker is timed for a tenth, as in a tuning."""


def plan_for(
    source: Any,
    *,
    batch_size: int | None = None,
    step: Step | None = None,
    step_s: float | None = None,
    profile: Profile = "balanced",
    seconds: float = SECONDS,
) -> Plan:
    """Return the settings to use, with reasons and gains, for a dataset with its `batch_size` or for a DataLoader.

    `step` is called with a batch some times, or `step_s` says how long the device computes on one. With neither, the
    plan is for loading alone. Gains are relative to the loader's own settings, or to torch's defaults.

        print(penstock.plan_for(dataset, batch_size=64, step_s=0.05).changes)
    """
    goal = profile_goal(profile)
    check_request(step, step_s, seconds)
    template = template_loader(source, batch_size)
    with preserve_rngs(template):
        request = TuningRequest(step=step, step_s=step_s, goal=goal, seconds=seconds)
        parts = _measure_parts(template, request, is_given=template is source)
    return plan_from_parts(parts, profile)


def _measure_parts(template: DataLoader[Any], request: TuningRequest, *, is_given: bool) -> MeasuredParts:
    """Measure one worker and the step, as the first stage of a tuning does."""
    run = TuningRun(template, request, is_given=is_given)
    costs = run.measure_costs()
    settings = _loader_settings(template) if is_given else TORCH_DEFAULTS
    machine = machine_facts()
    return MeasuredParts(
        source="dataset",
        workload=costs.workload.replace(workers=settings.num_workers, prefetch=settings.prefetch_factor),
        settings=settings,
        context=_context(costs, machine),
        samples_per_batch=run.samples_per_batch,
        fingerprint=fingerprint(machine, describe(template, 0, requested={})),
        notes=(costs.limit.note,) if costs.limit.note else (),
    )


def _loader_settings(template: DataLoader[Any]) -> LoaderSettings:
    context = template.multiprocessing_context
    return LoaderSettings(
        num_workers=template.num_workers,
        prefetch_factor=template.prefetch_factor or TORCH_PREFETCH_FACTOR,
        pin_memory=bool(template.pin_memory),
        persistent_workers=template.persistent_workers,
        in_order=bool(getattr(template, "in_order", True)),
        multiprocessing_context=None if context is None else context.get_start_method(),
    )


def _context(costs: TuningCosts, machine: Machine) -> TrainingContext:
    """Return this machine as it is now, with the part of its memory that belongs to this rank."""
    worker, demand = costs.worker, costs.demand
    resources = WorkerResources.of_this_rank()
    batch_s = float((worker.cpu_s + worker.waiting_s).mean())
    return TrainingContext(
        platform=machine.platform,
        gpus=len(machine.gpus),
        has_in_order=HAS_IN_ORDER,
        free_bytes=resources.free_bytes,
        shared_free_bytes=resources.shared_free_bytes,
        batch_bytes=worker.batch_bytes,
        worker_bytes=worker.worker_bytes,
        worker_start=WorkerStartCost.measured(worker.first_s, 0.0, batch_s, 1),
        epoch_batches=demand.epoch_batches,
        dataset_workers=demand.dataset_workers,
    )
