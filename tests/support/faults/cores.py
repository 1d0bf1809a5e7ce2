"""The cores are the limit: by honest work, by threads in each other's way, by a quota or an affinity, by somebody else,
by the garbage collector."""

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
from tests.support.faults.apart import apart
from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.material import BATCH, SIDE, Decode, Pictures, jpeg, loader, picture_files, pictures

QUOTA_PERIOD_US = 100_000
LARGE_PICTURES = 16


@fault(expect="decode_bound")
def large_pictures(case: Case) -> Iterator[Training]:
    """Pictures far larger than what the training needs: all cores decode."""
    side = case.pick(mild=640, severe=960, removed=SIDE)
    yield Training(loader=loader(Pictures(picture_files(case.folder, LARGE_PICTURES, side), case.steps * BATCH)))


@fault(expect="cpu_oversubscribed")
def threads_in_workers(case: Case) -> Iterator[Training]:
    """More workers than cores, and in each the library runs a thread per core, as if the machine were its own."""
    cores = usable_cores()
    workers = case.pick(mild=cores + 1, severe=2 * cores, removed=cores)
    threads = Threads(1 if case.removed else cores)
    yield Training(loader=loader(pictures(case, transform), num_workers=workers, worker_init_fn=threads))


def no_affinity(folder: Path) -> str | None:
    """Whether workers can be held on fewer cores than there are."""
    if not hasattr(os, "sched_setaffinity"):
        return "the system has no affinities"
    return None if usable_cores() >= 2 else "there is one core only"


@fault(expect="cpu_oversubscribed", missing=no_affinity)
def held_cores(case: Case) -> Iterator[Training]:
    """Workers inherit an affinity that holds all of them on one core, while the others have nothing to do."""
    work = pictures(case, Decode(jpeg(SIDE, case.seed), case.level(mild=0.0012, severe=0.0020)))
    init = None if case.removed else on_one_core
    yield Training(loader=loader(work, num_workers=case.level(mild=2, severe=4), worker_init_fn=init))


@fault(expect="gc_pauses")
def worker_garbage(case: Case) -> Iterator[Training]:
    """Workers collect their garbage every few samples, and each time walk all that they have inherited."""
    collect = Collect(case.pick(mild=96, severe=32, removed=0))
    yield Training(loader=loader(pictures(case, collect)))


def no_quota(folder: Path) -> str | None:
    """Whether the kernel lets us."""
    return cgroup.missing("cpu", "cpu.cfs_quota_us")


@fault(expect="cpu_quota", missing=no_quota)
def quota(case: Case) -> Iterator[Training]:
    """The container may use less of the cores than the machine has."""
    cores = case.pick(mild=0.8, severe=0.5, removed=0.0)
    with ExitStack() as stack:
        if cores:
            limits = {"cpu.cfs_period_us": QUOTA_PERIOD_US, "cpu.cfs_quota_us": int(cores * QUOTA_PERIOD_US)}
            stack.enter_context(cgroup.limited("cpu", {file: str(value) for file, value in limits.items()}))
        yield _busy_training(case)


@fault(expect="noisy_neighbour")
def neighbours(case: Case) -> Iterator[Training]:
    """Processes of somebody else's keep the cores busy."""
    cores = usable_cores()
    burners = case.pick(mild=cores, severe=3 * cores, removed=0)
    with ExitStack() as stack:
        if burners:
            stack.enter_context(apart("burn", str(burners)))
        yield _busy_training(case)


def _busy_training(case: Case) -> Training:
    """Needs about one and a half cores, and has them when nobody is in the way."""
    return Training(loader=loader(pictures(case, Decode(jpeg(SIDE, case.seed), 0.0010))))


@dataclass(frozen=True, slots=True)
class Threads:
    """What a careless library does in a worker; torch itself sets one thread there."""

    count: int

    def __call__(self, worker: int) -> None:
        """As a worker_init_fn."""
        torch.set_num_threads(self.count)


def transform(index: int) -> None:
    """Some linear algebra per sample: too little for the library's threads to do but wait for each other."""
    plane = torch.ones(192, 192)
    torch.mm(plane, plane)


def on_one_core(worker: int) -> None:
    """As a worker_init_fn."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@dataclass(frozen=True, slots=True)
class Collect:
    """What somebody wrote who once ran out of memory."""

    every: int
    """Samples; 0: never."""

    def __call__(self, index: int) -> None:
        """For a sample."""
        if self.every and index % self.every == 0:
            gc.collect()
