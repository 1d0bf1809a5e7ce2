"""The cost of batches, measured on one worker that runs alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader

from penstock.core.types import Floats
from penstock.errors import PenstockError, SettingError
from penstock.recording.format import FetchLine
from penstock.tuner.measure import shutdown_after
from penstock.watcher.dataloader.main_process import make_iterator, take_wait_parts, worker_pids
from penstock.watcher.dataloader.worker_files import WorkerFiles

MIN_BATCHES, MAX_BATCHES = 4, 200
"""Batches on which the worker is timed: the first is cold and left out; more than the maximum add no information."""


class WorkerStartFailed(Exception):
    """Workers could not be started; the cause of this exception says why."""


class FetchFailed(Exception):
    """A batch could not be loaded; the cause of this exception says why."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.batch = batch
        """Number of the batch, counted from 0."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkerCost:
    """The cost of a batch on one worker and on the main process."""

    cpu_s: Floats
    """Computing of the worker, batch by batch."""
    waiting_s: Floats
    """Waiting of the worker for storage, network, locks and timers, batch by batch."""
    sending_s: float
    """Computing of the worker to send a batch, which a main process that makes the batch itself saves."""
    receive_s: float
    """Time of the main process to receive a batch that is ready."""
    first_s: float
    """Seconds until the first batch: the start of one worker, and a cold batch."""
    batch_bytes: int
    worker_bytes: int | None
    """Private memory of the worker at the end; None where the system does not report it."""
    last: Any
    """The last batch, on which the step can be tried."""

    @property
    def computing_share(self) -> float | None:
        """Share of the time for a batch that the worker computes; None if batches take no time."""
        cpu_s, waiting_s = float(self.cpu_s.mean()) + self.sending_s, float(self.waiting_s.mean())
        return cpu_s / (cpu_s + waiting_s) if cpu_s + waiting_s > 0 else None


def measure_worker_cost(loader: DataLoader[Any], *, seconds: float, until_s: float) -> WorkerCost:
    """Time a loader with one worker; its fetches are timed in the worker itself, as `penstock run` does."""
    files = WorkerFiles()
    start_s = time.perf_counter()
    try:
        with shutdown_after(_start(loader, files, start_s)) as iterator:
            received = _receive(iterator, seconds, until_s)
            worker_bytes = _private_bytes(next(iter(worker_pids(iterator)), None))
        fetches = sorted(
            (line for line in files.drain(last=True) if isinstance(line, FetchLine)), key=lambda fetch: fetch.at_s
        )
    finally:
        files.close()
    if not received.at_s:
        raise SettingError("the dataset is empty: there is nothing to measure")
    if not fetches:
        raise PenstockError("the work of the worker could not be timed", stage="measure")
    cpu_s, waiting_s, sending_s = _fetch_costs(fetches)
    return WorkerCost(
        cpu_s=cpu_s,
        waiting_s=waiting_s,
        sending_s=sending_s,
        receive_s=float(np.median(received.receive_s)) if received.receive_s else 0.0,
        first_s=received.at_s[0] - start_s,
        batch_bytes=batch_size_bytes(received.last),
        worker_bytes=worker_bytes,
        last=received.last,
    )


def _start(loader: DataLoader[Any], files: WorkerFiles, start_s: float) -> Iterator[Any]:
    try:
        return make_iterator(loader, 0, 0, files, start_s)
    except PenstockError:
        raise
    except Exception as error:
        raise WorkerStartFailed from error


@dataclass(slots=True)
class _ReceivedBatches:
    at_s: list[float] = field(default_factory=list)
    receive_s: list[float] = field(default_factory=list)
    last: Any = None


def _receive(iterator: Iterator[Any], seconds: float, until_s: float) -> _ReceivedBatches:
    """Receive batches as they are ready, for so many seconds after the first."""
    received = _ReceivedBatches()
    while len(received.at_s) < MAX_BATCHES:
        request_s = time.perf_counter()
        try:
            received.last = next(iterator)
        except StopIteration:
            break
        except Exception as error:
            raise FetchFailed(len(received.at_s)) from error
        now_s = time.perf_counter()
        parts = take_wait_parts(iterator)
        if received.at_s and parts.idle_s is not None:
            received.receive_s.append(max(0.0, now_s - request_s - parts.idle_s - parts.sampler_s))
        received.at_s.append(now_s)
        if now_s >= until_s or (len(received.at_s) >= MIN_BATCHES and now_s - received.at_s[0] >= seconds):
            break
    return received


def _fetch_costs(fetches: list[FetchLine]) -> tuple[Floats, Floats, float]:
    """Return computing and waiting per batch, and the time to send one: it is the gap between two fetches."""
    at_s, fetch_s, cpu_s, queue_s = (
        np.array([getattr(fetch, name) for fetch in fetches]) for name in ("at_s", "fetch_s", "cpu_s", "queue_s")
    )
    gaps_s = np.diff(at_s) - fetch_s[:-1]
    sending_s = max(0.0, float(np.median(gaps_s))) if len(gaps_s) else 0.0
    waiting_s = np.maximum(fetch_s - cpu_s - queue_s, 0.0)
    steady = slice(1, None) if len(fetches) > 2 else slice(None)
    return cpu_s[steady], waiting_s[steady], sending_s


def _private_bytes(pid: int | None) -> int | None:
    with suppress(psutil.Error, AttributeError):
        if pid is not None:
            return int(psutil.Process(pid).memory_full_info().uss)
    return None


def batch_size_bytes(batch: Any) -> int:
    """Return the bytes of the arrays and strings in a batch, however they are nested."""
    if isinstance(batch, torch.Tensor):
        return batch.element_size() * batch.nelement()
    if isinstance(batch, np.ndarray):
        return int(batch.nbytes)
    if isinstance(batch, bytes | str):
        return len(batch)
    if isinstance(batch, dict):
        return sum(batch_size_bytes(value) for value in batch.values())
    if isinstance(batch, list | tuple | set):
        return sum(batch_size_bytes(value) for value in batch)
    return 0
