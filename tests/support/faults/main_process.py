"""Faults in the main process: its GIL, its garbage collector, its sampler, its log, and its waits for the device."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.utils.data import Sampler

from tests.support.faults.fault import Case, Step, Training, fault
from tests.support.faults.image_dataset import image_dataset, loader

LOG_LINE = '{"metric": "loss", "value": 0.693147, "step": 1}\n'
LIVE_OBJECTS = 200_000
"""Objects on the heap that every garbage collection of `garbage` walks."""


@fault(expect="main_process_python")
def gil_hog(case: Case) -> Iterator[Training]:
    """A thread of the main process runs Python and holds the GIL: half of the time (mild) or always."""
    with ExitStack() as stack:
        if not case.removed:
            stack.enter_context(_gil_hog_thread(rest_s=case.pick(mild=0.01, severe=0.0, removed=0.0)))
        yield Training(loader=loader(image_dataset(case)))


@fault(expect="gc_pauses")
def garbage(case: Case) -> Iterator[Training]:
    """The loop makes reference cycles and collects them every few steps, which walks a heap full of live objects."""
    live_objects = [[number] for number in range(LIVE_OBJECTS)]
    step = StepWithCycles(live_objects, case.pick(mild=16, severe=4, removed=0))
    yield Training(loader=loader(image_dataset(case)), step=step)


@fault(expect="sampler_overhead")
def slow_sampler(case: Case) -> Iterator[Training]:
    """Drawing the index of a sample takes the main process too long."""
    dataset = image_dataset(case)
    sampler = SlowSampler(len(dataset), case.pick(mild=0.001, severe=0.003, removed=0.0))
    yield Training(loader=loader(dataset, sampler=sampler))


@fault(expect="logging_overhead")
def fsync_log(case: Case) -> Iterator[Training]:
    """Every metric of every step is a line that is flushed to the disk at once."""
    path = case.folder / f"metrics-{os.getpid()}.jsonl"
    try:
        with path.open("a") as log:
            step = StepWithLog(log, case.pick(mild=24, severe=80, removed=0))
            yield Training(loader=loader(image_dataset(case)), step=step)
    finally:
        path.unlink()


def no_cuda(folder: Path) -> str | None:
    """Return why there is no device to wait for, or None if there is one."""
    return None if torch.cuda.is_available() else "there is no CUDA device"


@fault(expect="host_sync", missing=no_cuda)
def item_each_step(case: Case) -> Iterator[Training]:
    """The loop reads the loss at each step, so that host and device work in turns and not at the same time."""
    step = StepOnDevice(case.level(mild=3, severe=6), sync=not case.removed)
    yield Training(loader=loader(image_dataset(case)), step=step)


@contextmanager
def _gil_hog_thread(rest_s: float) -> Iterator[None]:
    """Run a thread that alternates between 10 ms of Python and `rest_s` seconds of sleep."""
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            until = time.perf_counter() + 0.01
            while time.perf_counter() < until:
                pass
            if rest_s:
                time.sleep(rest_s)

    thread = threading.Thread(target=spin, name="gil-hog")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass(slots=True)
class StepWithCycles:
    """A step that leaves some reference cycles, and sometimes runs the garbage collector.

    The cycles are few; the live objects on the heap make the collection slow.
    """

    live_objects: list[list[int]]
    every: int
    """Steps from one collection to the next; 0: none."""
    steps: int = 0

    def __call__(self, batch: Any) -> None:
        Step()(batch)
        for _ in range(100):
            cycle: list[Any] = []
            cycle.append(cycle)
        self.steps += 1
        if self.every and self.steps % self.every == 0:
            gc.collect()


class SlowSampler(Sampler[int]):
    """A sequential sampler that computes for `cpu_s` seconds before it yields an index."""

    def __init__(self, samples: int, cpu_s: float) -> None:
        self._samples = samples
        self._cpu_s = cpu_s

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        for index in range(self._samples):
            until = time.thread_time() + self._cpu_s
            while time.thread_time() < until:
                pass
            yield index


@dataclass(frozen=True, slots=True)
class StepWithLog:
    """A step that writes a log line per metric and flushes each to the disk before the next."""

    log: TextIO
    metrics: int

    def __call__(self, batch: Any) -> None:
        Step()(batch)
        for _ in range(self.metrics):
            self.log.write(LOG_LINE)
            self.log.flush()
            os.fsync(self.log.fileno())


class StepOnDevice:
    """A step whose kernels run while the host computes about as long, unless `sync` reads the result in between."""

    def __init__(self, matmuls: int, sync: bool) -> None:
        self._weights = torch.randn(4096, 4096, device="cuda")
        self._matmuls = matmuls
        self._sync = sync
        self._host = Step(cpu_s=0.002 * matmuls, device_s=0.0)

    def __call__(self, batch: Any) -> None:
        result = self._weights
        for _ in range(self._matmuls):
            result = result @ self._weights * 1e-3
        if self._sync:
            result.mean().item()
        self._host(batch)
