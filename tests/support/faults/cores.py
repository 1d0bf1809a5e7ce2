"""Faults in which the CPU cores are the limit.

The causes are heavy decoding, too many threads, affinities, a CPU quota, other programs, and the garbage collector.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from penstock.core.cores import usable_cores
from tests.support.faults import cgroup
from tests.support.faults.detached_process import detached_process
from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.image_dataset import (
    BATCH,
    SIDE,
    Decode,
    ImageDataset,
    image_dataset,
    image_files,
    jpeg,
    loader,
)

QUOTA_PERIOD_US = 100_000
LARGE_IMAGES = 16
"""Number of different images in `large_images`."""


@fault(expect="decode_bound")
def large_images(case: Case) -> Iterator[Training]:
    """The images are far larger than the training needs, so that all cores decode."""
    side = case.pick(mild=640, severe=960, removed=SIDE)
    dataset = ImageDataset(image_files(case.folder, LARGE_IMAGES, side), case.steps * BATCH)
    yield Training(loader=loader(dataset))


@fault(expect="cpu_oversubscribed")
def threads_in_workers(case: Case) -> Iterator[Training]:
    """There are more workers than cores, and in each of them torch runs as many threads as the machine has cores."""
    cores = usable_cores()
    workers = case.pick(mild=cores + 1, severe=2 * cores, removed=cores)
    init = SetThreads(1 if case.removed else cores)
    yield Training(loader=loader(image_dataset(case, multiply_matrices), num_workers=workers, worker_init_fn=init))


def no_affinity(folder: Path) -> str | None:
    """Return why workers cannot be kept on fewer cores than there are, or None if they can."""
    if not hasattr(os, "sched_setaffinity"):
        return "the system has no affinities"
    return None if usable_cores() >= 2 else "there is one core only"


@fault(expect="cpu_oversubscribed", missing=no_affinity)
def held_cores(case: Case) -> Iterator[Training]:
    """The affinity of the workers keeps all of them on one core, while the other cores are idle."""
    dataset = image_dataset(case, Decode(jpeg(SIDE, case.seed), case.level(mild=0.0012, severe=0.0020)))
    init = None if case.removed else stay_on_one_core
    yield Training(loader=loader(dataset, num_workers=case.level(mild=2, severe=4), worker_init_fn=init))


@fault(expect="gc_pauses")
def worker_garbage(case: Case) -> Iterator[Training]:
    """Workers run the garbage collector every few samples, which walks all objects that they have inherited."""
    collect = CollectGarbage(case.pick(mild=96, severe=32, removed=0))
    yield Training(loader=loader(image_dataset(case, collect)))


def no_quota(folder: Path) -> str | None:
    """Return why the CPU time of this process cannot be limited, or None if it can."""
    return cgroup.missing("cpu", "cpu.cfs_quota_us")


@fault(expect="cpu_quota", missing=no_quota)
def quota(case: Case) -> Iterator[Training]:
    """The container may use less CPU time than the machine has."""
    cores = case.pick(mild=0.8, severe=0.5, removed=0.0)
    with ExitStack() as stack:
        if cores:
            limits = {"cpu.cfs_period_us": QUOTA_PERIOD_US, "cpu.cfs_quota_us": int(cores * QUOTA_PERIOD_US)}
            stack.enter_context(cgroup.limited("cpu", {file: str(value) for file, value in limits.items()}))
        yield _busy_training(case)


@fault(expect="noisy_neighbour")
def neighbours(case: Case) -> Iterator[Training]:
    """Processes that do not belong to the training keep the cores busy."""
    cores = usable_cores()
    processes = case.pick(mild=cores, severe=3 * cores, removed=0)
    with ExitStack() as stack:
        if processes:
            stack.enter_context(detached_process("burn", str(processes)))
        yield _busy_training(case)


def _busy_training(case: Case) -> Training:
    """Return a training that needs about one and a half cores."""
    return Training(loader=loader(image_dataset(case, Decode(jpeg(SIDE, case.seed), 0.0010))))


@dataclass(frozen=True, slots=True)
class SetThreads:
    """A worker_init_fn that sets the number of torch's threads, as some libraries do; torch sets it to one."""

    count: int

    def __call__(self, worker: int) -> None:
        torch.set_num_threads(self.count)


def multiply_matrices(index: int) -> None:
    """Do extra work that is too small for several threads: they mostly wait for each other."""
    matrix = torch.ones(192, 192)
    torch.mm(matrix, matrix)


def stay_on_one_core(worker: int) -> None:
    """Move the worker to the first core, as a worker_init_fn."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@dataclass(frozen=True, slots=True)
class CollectGarbage:
    """Extra work that runs the garbage collector, as some scripts do against a lack of memory."""

    every: int
    """Samples from one collection to the next; 0: none."""

    def __call__(self, index: int) -> None:
        if self.every and index % self.every == 0:
            gc.collect()
