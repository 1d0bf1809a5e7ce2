"""The main process is in its own way: its GIL, its garbage, its sampler, its log, its waits for the device."""

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
from tests.support.faults.material import loader, pictures

LOG_LINE = '{"metric": "loss", "value": 0.693147, "step": 1}\n'
ALIVE = 200_000


@fault(expect="main_process_python")
def gil_hog(case: Case) -> Iterator[Training]:
    """A thread of the main process runs Python and holds the GIL: half of the time, or always."""
    with ExitStack() as stack:
        if not case.removed:
            stack.enter_context(_hog(rest_s=case.pick(mild=0.01, severe=0.0, removed=0.0)))
        yield Training(loader=loader(pictures(case)))


@fault(expect="gc_pauses")
def garbage(case: Case) -> Iterator[Training]:
    """The loop makes cycles and collects them every few steps, and each time walks a heap full of living objects."""
    alive = [[number] for number in range(ALIVE)]
    yield Training(loader=loader(pictures(case)), step=Cycles(alive, case.pick(mild=16, severe=4, removed=0)))


@fault(expect="sampler_overhead")
def slow_sampler(case: Case) -> Iterator[Training]:
    """Choosing a sample takes the main process longer than it should."""
    dataset = pictures(case)
    sampler = Weighing(len(dataset), case.pick(mild=0.001, severe=0.003, removed=0.0))
    yield Training(loader=loader(dataset, sampler=sampler))


@fault(expect="logging_overhead")
def fsync_log(case: Case) -> Iterator[Training]:
    """Every metric of every step is a line that is flushed to the disk at once."""
    path = case.folder / f"metrics-{os.getpid()}.jsonl"
    try:
        with path.open("a") as log:
            yield Training(loader=loader(pictures(case)), step=Logged(log, case.pick(mild=24, severe=80, removed=0)))
    finally:
        path.unlink()


def no_cuda(folder: Path) -> str | None:
    """Whether there is a device to wait for."""
    return None if torch.cuda.is_available() else "there is no CUDA device"


@fault(expect="host_sync", missing=no_cuda)
def item_each_step(case: Case) -> Iterator[Training]:
    """The loop reads the loss each step, so host and device take turns where they could work side by side."""
    step = OnDevice(case.level(mild=3, severe=6), sync=not case.removed)
    yield Training(loader=loader(pictures(case)), step=step)


@contextmanager
def _hog(rest_s: float) -> Iterator[None]:
    """Runs Python for 10 ms, rests, and again."""
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            until = time.perf_counter() + 0.01
            while time.perf_counter() < until:
                pass
            if rest_s:
                time.sleep(rest_s)

    hog = threading.Thread(target=spin, name="hog")
    hog.start()
    try:
        yield
    finally:
        ended.set()
        hog.join()


@dataclass(slots=True)
class Cycles:
    """A step that leaves cycles behind, and sometimes collects them itself."""

    alive: list[list[int]]
    every: int
    """Steps between collections; 0: never."""
    steps: int = 0

    def __call__(self, batch: Any) -> None:
        """The cycles are few: what costs is the heap beside them."""
        Step()(batch)
        for _ in range(100):
            ring: list[Any] = []
            ring.append(ring)
        self.steps += 1
        if self.every and self.steps % self.every == 0:
            gc.collect()


class Weighing(Sampler[int]):
    """Weighs each sample in Python before it takes it."""

    def __init__(self, samples: int, cpu_s: float) -> None:
        self._samples = samples
        self._cpu_s = cpu_s

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        """In order, after all."""
        for index in range(self._samples):
            until = time.thread_time() + self._cpu_s
            while time.thread_time() < until:
                pass
            yield index


@dataclass(frozen=True, slots=True)
class Logged:
    """A step that logs its metrics."""

    log: TextIO
    metrics: int

    def __call__(self, batch: Any) -> None:
        """A line each, each on the disk before the next."""
        Step()(batch)
        for _ in range(self.metrics):
            self.log.write(LOG_LINE)
            self.log.flush()
            os.fsync(self.log.fileno())


class OnDevice:
    """A step whose kernels run while the host goes on, unless it asks for the result."""

    def __init__(self, matmuls: int, sync: bool) -> None:
        self._weights = torch.randn(4096, 4096, device="cuda")
        self._matmuls = matmuls
        self._sync = sync
        self._host = Step(cpu_s=0.002 * matmuls, device_s=0.0)

    def __call__(self, batch: Any) -> None:
        """Host and device have about as much to do."""
        result = self._weights
        for _ in range(self._matmuls):
            result = result @ self._weights * 1e-3
        if self._sync:
            result.mean().item()
        self._host(batch)
