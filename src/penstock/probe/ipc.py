"""The IPC probe: what does moving a batch from a worker of torch's DataLoader to the training loop cost?

The samples are constant, so making them costs nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.slab_layout import SlotSpec
from penstock.errors import SettingError, WorkerCrash
from penstock.probe.results import IpcCost

BUDGET_S = 4.0
WARM_UP_BATCHES = 4
"""Batches before the timing: those that the worker finished while its first one was awaited come faster than usual."""
BATCHES_MAX = 2000
TIMEOUT_S = 60.0
"""Limit for the worker's start, which imports torch, and for each batch."""
BATCHES_IN_MEMORY = 4
"""Batches in shared memory at a time: two prefetched, one being made, one in the loop."""
SHARED_MEMORY = Path("/dev/shm")


class ConstantDataset:
    """A dataset that returns the same sample for every index at no cost; picklable, for spawned workers."""

    def __init__(self, sample: Mapping[str, NDArray[Any]]) -> None:
        self.sample = dict(sample)

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        return self.sample


def probe_ipc(
    slots: Mapping[str, SlotSpec],
    batch_size: int,
    *,
    budget_s: float = BUDGET_S,
    clock: Clock = SYSTEM_CLOCK,
    cpu_s: Callable[[], float] = time.thread_time,
) -> IpcCost:
    """Time batches of that shape through one worker, collated by torch; the start of the worker is not timed."""
    if batch_size < 1 or not slots:
        raise SettingError(f"a batch of {batch_size} samples of {len(slots)} arrays has nothing to transfer")
    batch_bytes = batch_size * sum(slot.size for slot in slots.values())
    _check_shared_memory(batch_bytes)
    began = clock.now()
    sample = {name: np.ones(slot.shape, slot.dtype) for name, slot in slots.items()}
    batches = _loader(ConstantDataset(sample), batch_size)
    try:
        count, batch_s, main_cpu_s = _time_batches(batches, budget_s, clock, cpu_s)
    except (RuntimeError, TypeError, ValueError, OSError) as error:  # the worker died, or torch does not know a type
        raise WorkerCrash(f"torch's DataLoader failed: {error}", stage="probe") from error
    finally:
        del batches  # this ends the worker
    return IpcCost(
        batch_size=batch_size,
        batch_bytes=batch_bytes,
        arrays=len(slots),
        batches=count,
        batch_s=batch_s,
        main_cpu_s=main_cpu_s,
        seconds=clock.now() - began,
    )


def _loader(dataset: ConstantDataset, batch_size: int) -> Iterator[Any]:
    try:
        from torch.utils.data import DataLoader
    except ImportError as error:
        raise SettingError("torch is not installed", advice="Install it: pip install 'penstock[torch]'") from error
    loader: Any = DataLoader(dataset, batch_size=batch_size, num_workers=1, timeout=TIMEOUT_S)  # type: ignore[arg-type]
    return iter(loader)


def _time_batches(
    batches: Iterator[Any], budget_s: float, clock: Clock, cpu_s: Callable[[], float]
) -> tuple[int, float, float]:
    """Return the number of timed batches, the seconds per batch, and the CPU seconds of this thread per batch.

    Each batch is dropped before the next one is taken.
    """
    next(batches)
    warm_up_end_s = clock.now() + budget_s / 4
    for _ in range(WARM_UP_BATCHES):
        if clock.now() >= warm_up_end_s:
            break
        next(batches)
    began, cpu_began = clock.now(), cpu_s()
    count, elapsed_s = 0, 0.0
    while count == 0 or (count < BATCHES_MAX and elapsed_s < budget_s * 3 / 4):
        next(batches)
        count, elapsed_s = count + 1, clock.now() - began
    return count, max(elapsed_s, 1e-9) / count, (cpu_s() - cpu_began) / count


def _check_shared_memory(batch_bytes: int) -> None:
    """Refuse batches for which /dev/shm is too small: a worker that fills it would die of a bus error."""
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return
    if BATCHES_IN_MEMORY * batch_bytes > free:
        raise SettingError(
            f"{BATCHES_IN_MEMORY} batches of {batch_bytes / 1e6:.3g} MB do not fit into /dev/shm "
            f"({free / 1e6:.3g} MB free)",
            advice="Start the container with --shm-size=8g, or probe a smaller batch",
        )
