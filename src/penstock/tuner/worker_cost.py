"""What batches cost, measured on one worker that nobody is in the way of."""

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
from penstock.tuner.measure import running
from penstock.watcher.dataloader.main_process import make_iterator, take_wait_parts, worker_pids
from penstock.watcher.dataloader.worker_files import WorkerFiles

LEAST_BATCHES, MOST_BATCHES = 4, 200
"""That the worker is timed on: the first is cold and left out; more tell nothing new."""


class StartFailed(Exception):
    """Workers could not be started: the cause says why."""


class FetchFailed(Exception):
    """A batch did not come: the cause says why."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.batch = batch
        """Its number, from 0."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkerCost:
    """Per batch, but for what is named otherwise."""

    cpu_s: Floats
    """Computing, of the worker, batch by batch."""
    waiting_s: Floats
    """Of the worker, for storage, network, locks, timers."""
    sending_s: float
    """Computing, of the worker, to send a batch off: what the main process would save by making it itself."""
    handover_s: float
    """Of the main process, to take a batch that is there."""
    first_s: float
    """Until the first batch: the start of one worker, and a cold batch."""
    batch_bytes: int
    worker_bytes: int | None
    """That the worker held for itself at the end; None where the system does not say."""
    last: Any
    """The last batch, to try the step on."""


def measure_worker_cost(loader: DataLoader[Any], *, seconds: float, until_s: float) -> WorkerCost:
    """Time a loader with one worker; its fetches in the worker itself, as `penstock run` does."""
    spool = WorkerFiles()
    began = time.perf_counter()
    try:
        with running(_started(loader, spool, began)) as iterator:
            taken = _take(iterator, seconds, until_s)
            worker_bytes = _private_bytes(next(iter(worker_pids(iterator)), None))
        fetches = sorted((x for x in spool.drain(last=True) if isinstance(x, FetchLine)), key=lambda fetch: fetch.at_s)
    finally:
        spool.close()
    if not taken.got_s:
        raise SettingError("the dataset is empty: there is nothing to measure")
    if not fetches:
        raise PenstockError("what the worker did could not be timed", stage="measure")
    cpu_s, waiting_s, sending_s = _costs(fetches)
    return WorkerCost(
        cpu_s=cpu_s,
        waiting_s=waiting_s,
        sending_s=sending_s,
        handover_s=float(np.median(taken.handovers_s)) if taken.handovers_s else 0.0,
        first_s=taken.got_s[0] - began,
        batch_bytes=size_bytes(taken.last),
        worker_bytes=worker_bytes,
        last=taken.last,
    )


def _started(loader: DataLoader[Any], spool: WorkerFiles, began: float) -> Iterator[Any]:
    try:
        return make_iterator(loader, 0, 0, spool, began)
    except PenstockError:
        raise
    except Exception as error:
        raise StartFailed from error


@dataclass(slots=True)
class _TakenBatch:
    got_s: list[float] = field(default_factory=list)
    handovers_s: list[float] = field(default_factory=list)
    last: Any = None


def _take(iterator: Iterator[Any], seconds: float, until_s: float) -> _TakenBatch:
    """Batches as they come, for so long after the first."""
    taken = _TakenBatch()
    while len(taken.got_s) < MOST_BATCHES:
        asked = time.perf_counter()
        try:
            taken.last = next(iterator)
        except StopIteration:
            break
        except Exception as error:
            raise FetchFailed(len(taken.got_s)) from error
        now = time.perf_counter()
        parts = take_wait_parts(iterator)
        if taken.got_s and parts.idle_s is not None:
            taken.handovers_s.append(max(0.0, now - asked - parts.idle_s - parts.sampler_s))
        taken.got_s.append(now)
        if now >= until_s or (len(taken.got_s) >= LEAST_BATCHES and now - taken.got_s[0] >= seconds):
            break
    return taken


def _costs(fetches: list[FetchLine]) -> tuple[Floats, Floats, float]:
    """Computing and waiting per batch, and sending: that comes after a fetch, so it is the gap to the next."""
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


def size_bytes(batch: Any) -> int:
    """Of its arrays and texts, however they are nested."""
    if isinstance(batch, torch.Tensor):
        return batch.element_size() * batch.nelement()
    if isinstance(batch, np.ndarray):
        return int(batch.nbytes)
    if isinstance(batch, bytes | str):
        return len(batch)
    if isinstance(batch, dict):
        return sum(size_bytes(value) for value in batch.values())
    if isinstance(batch, list | tuple | set):
        return sum(size_bytes(value) for value in batch)
    return 0
