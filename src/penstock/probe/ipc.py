"""What does it cost to get a batch from a worker of torch's DataLoader to the training loop, if making it is free?"""

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
WARM_UP = 4
"""Batches before the clock runs: what the worker had ready while it was waited for is not its pace."""
BATCHES_MAX = 2000
TIMEOUT_S = 60.0
"""For the worker's start, where it must import torch, and for each batch."""
HELD = 4
"""Batches in shared memory at a time: prefetch 2, one in the making, one in the loop."""
SHM = Path("/dev/shm")


class ConstantDataset:
    """A data set that costs nothing: the same sample, whatever is asked for. Picklable, for spawned workers."""

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
    """Batches of that shape through one worker, collated by torch; its start is not timed."""
    if batch_size < 1 or not slots:
        raise SettingError(f"a batch of {batch_size} samples of {len(slots)} arrays has nothing to hand over")
    batch_bytes = batch_size * sum(slot.size for slot in slots.values())
    _check_room(batch_bytes)
    began = clock.now()
    sample = {name: np.ones(slot.shape, slot.dtype) for name, slot in slots.items()}
    batches = _loader(ConstantDataset(sample), batch_size)
    try:
        count, batch_s, main_cpu_s = _timed(batches, budget_s, clock, cpu_s)
    except (RuntimeError, TypeError, ValueError, OSError) as error:  # a worker that died, a type torch does not know
        raise WorkerCrash(f"torch's DataLoader failed: {error}", stage="probe") from error
    finally:
        del batches  # its worker ends with it
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


def _timed(
    batches: Iterator[Any], budget_s: float, clock: Clock, cpu_s: Callable[[], float]
) -> tuple[int, float, float]:
    """Batches, seconds of each, and of them this thread's own; a batch is dropped before the next is asked for."""
    next(batches)
    warm_s = clock.now() + budget_s / 4
    for _ in range(WARM_UP):
        if clock.now() >= warm_s:
            break
        next(batches)
    began, cpu_began = clock.now(), cpu_s()
    count, passed_s = 0, 0.0
    while count == 0 or (count < BATCHES_MAX and passed_s < budget_s * 3 / 4):
        next(batches)
        count, passed_s = count + 1, clock.now() - began
    return count, max(passed_s, 1e-9) / count, (cpu_s() - cpu_began) / count


def _check_room(batch_bytes: int) -> None:
    """A worker that fills /dev/shm dies of a bus error: better said before."""
    try:
        free = shutil.disk_usage(SHM).free
    except OSError:
        return
    if HELD * batch_bytes > free:
        raise SettingError(
            f"{HELD} batches of {batch_bytes / 1e6:.3g} MB do not fit into /dev/shm ({free / 1e6:.3g} MB free)",
            advice="Start the container with --shm-size=8g, or probe a smaller batch",
        )
