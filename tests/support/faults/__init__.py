"""Real faults around real loaders (torch's DataLoader), each with its twin without the fault: for your rules and ours.

>>> with FAULTS["slow_worker"].build(Case(folder=folder)) as training:
...     training.run(penstock.watch(training.loader, record="run.jsonl"))
"""

from __future__ import annotations

from tests.support.faults import cores, disks, handover, latency, mainloop, quiet, settings, uneven
from tests.support.faults.fault import STEPS, Case, Fault, Outcome, Severity, Step, Training, fault

_ALL = (
    quiet.healthy,
    quiet.compute_bound,
    settings.no_workers,
    settings.one_worker,
    settings.short_epochs,
    latency.slow_samples,
    latency.slow_store,
    latency.late_answers,
    cores.large_pictures,
    cores.threads_in_workers,
    cores.held_cores,
    cores.worker_garbage,
    cores.quota,
    cores.neighbours,
    disks.slow_disk,
    disks.few_reads,
    disks.many_readers,
    disks.tiny_files,
    uneven.slow_worker,
    uneven.stragglers,
    uneven.uneven_shards,
    uneven.few_shards,
    handover.slow_collate,
    handover.one_lock,
    handover.pickled_batches,
    mainloop.gil_hog,
    mainloop.garbage,
    mainloop.slow_sampler,
    mainloop.fsync_log,
    mainloop.item_each_step,
)

FAULTS: dict[str, Fault] = {each.name: each for each in _ALL}
"""By name, in the order of the rooms they are in."""

__all__ = ["FAULTS", "STEPS", "Case", "Fault", "Outcome", "Severity", "Step", "Training", "fault"]
