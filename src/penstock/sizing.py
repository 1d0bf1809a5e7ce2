"""How large an engine is: what the user has set, and a stated rule for everything else."""

from __future__ import annotations

import sys
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.cores import loader_cores, rank_cores, worker_cores
from penstock.core.launch import local_place
from penstock.core.layout import SlabLayout
from penstock.core.settings import EngineSettings
from penstock.engine.budget import Demand, default_budget, share_out
from penstock.engine.engine import EnginePlan
from penstock.errors import SettingError

READERS = 4
"""Reads in flight to begin with: enough for an SSD, not too many for a disk."""
MOST_READERS = 32
"""As many as an object store likes."""
REMOTE_READERS = 16
"""To begin with, where every read waits for a network: climbing there from a disk's few takes seconds."""
WORKERS = 8
"""Workers to begin with, where there are that many cores: more come when decoding is seen to be the bottleneck."""


def plan_engine(
    settings: EngineSettings,
    layout: SlabLayout,
    block_sizes: NDArray[np.int64],
    blocks_in_use: int,
    *,
    own_code: bool,
    remote: bool = False,
    senders: int = 0,
) -> EnginePlan:
    """`own_code` says that workers run nothing of the user's: then threads may stand in while processes start.

    `senders` are threads of ours that keep a core busy each: where there are cores enough, they are not the workers'.
    """
    executor = choose_executor(settings)
    cores, here = loader_cores(), local_place()
    cores -= senders if cores > 2 * senders else 0
    workers = settings.workers or min(WORKERS, cores)
    demand = Demand(
        slab_bytes=layout.size,
        block_bytes=int(block_sizes.mean()) if len(block_sizes) else 0,
        largest_block_bytes=int(block_sizes.max(initial=0)),
        blocks_in_use=blocks_in_use,
        processes=workers if executor == "process" else 0,
    )
    shares = share_out(settings.memory_bytes or default_budget() // here.of, demand)
    most_workers = settings.workers or min(cores, workers + shares.more_processes)
    return EnginePlan(
        executor,
        workers,
        settings.readers or (REMOTE_READERS if remote else READERS),
        shares.slabs,
        layout.size,
        shares.arena_bytes,
        settings.timeout_s,
        most_workers=most_workers,
        most_readers=0 if settings.readers else MOST_READERS,
        stopgaps=own_code,
        batch_size=layout.batch_size,
        filled_bytes=layout.filled_bytes,
        cores=worker_cores(most_workers, here.rank) if settings.pin_workers else (),
    )


def choose_executor(settings: EngineSettings) -> Literal["process", "thread"]:
    """Processes, unless asked otherwise or there is nothing to gain: one core, or no GIL, or no way to start them."""
    if settings.executor != "auto":
        if settings.executor == "process" and sys.platform == "win32":
            raise SettingError("worker processes are not available on Windows", advice="Use executor='thread'")
        return settings.executor
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return "thread" if sys.platform == "win32" or free_threaded or rank_cores() == 1 else "process"
