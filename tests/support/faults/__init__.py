"""Faults that are injected into trainings with torch's DataLoader, to test whether the diagnosis names the right rule.

Each fault is a real training (real processes, files and sockets) that is slowed down by one cause, and the same
training without that cause:

>>> with FAULTS["slow_worker"].build(Case(folder=folder)) as training:
...     training.run(penstock.watch(training.loader, record="run.jsonl"))

fault.py              Fault, Case, Training, Outcome, and the decorator @fault
image_dataset.py      the dataset of JPEG files that most trainings load, and the extra work that faults add to a sample
cgroup.py, detached_process.py, programs/    kernel limits, and programs that run beside the training
the other modules     the faults, grouped by the part of the pipeline that is slow
"""

from __future__ import annotations

from tests.support.faults import cores, disks, imbalance, ipc, latency, loader_settings, main_process, no_fault
from tests.support.faults.fault import STEPS, Case, Fault, Outcome, Severity, Step, Training, fault

_ALL = (
    no_fault.healthy,
    no_fault.compute_bound,
    loader_settings.no_workers,
    loader_settings.one_worker,
    loader_settings.short_epochs,
    latency.slow_samples,
    latency.slow_store,
    latency.late_answers,
    cores.large_images,
    cores.threads_in_workers,
    cores.held_cores,
    cores.worker_garbage,
    cores.quota,
    cores.neighbours,
    disks.slow_disk,
    disks.few_reads,
    disks.many_readers,
    disks.tiny_files,
    imbalance.slow_worker,
    imbalance.stragglers,
    imbalance.uneven_shards,
    imbalance.few_shards,
    ipc.slow_collate,
    ipc.one_lock,
    ipc.pickled_batches,
    main_process.gil_hog,
    main_process.garbage,
    main_process.slow_sampler,
    main_process.fsync_log,
    main_process.item_each_step,
)

FAULTS: dict[str, Fault] = {each.name: each for each in _ALL}
"""All faults by name, in the order of their modules."""

__all__ = ["FAULTS", "STEPS", "Case", "Fault", "Outcome", "Severity", "Step", "Training", "fault"]
