"""The size of an engine: how many workers and readers it has, and how its memory is divided."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from penstock.core.cgroups import free_bytes
from penstock.core.cores import loader_cores, rank_cores, worker_cores
from penstock.core.ranks import local_rank
from penstock.core.slab_layout import SlabLayout
from penstock.data.sources.base import ReadSizes
from penstock.engine.engine import EnginePlan
from penstock.errors import SettingError
from penstock.options import EngineOptions, LoaderOptions

READERS = 4
"""Reads in flight at first: enough for an SSD, not too many for a disk."""
MAX_READERS = 32
"""The most reads in flight: object stores gain up to about this number."""
REMOTE_READERS = 16
"""Reads in flight at first where every read waits for a network; growing from a disk's few would take seconds."""
WORKERS = 8
"""Workers at first, where there are as many cores; more are added when decoding turns out to be the bottleneck."""
PROCESS_BYTES = 64 << 20
"""Memory of a worker process: interpreter, numpy, decoders, and one sample that is being decoded."""
MIN_SLABS = 3
"""One that the training loop uses, one that is complete, one that is being filled."""
SOME_SLABS = 8
"""There are up to so many slabs as long as there is memory for them; beyond that, an eighth of the budget is used."""
MAX_SLABS = 64
"""One sample that takes fifty times as long as the others holds up this many small batches behind it."""
FREE_DIVISOR = 4
"""The part of the free memory that is used without a budget: a quarter."""
MIN_ARENA_BYTES = 8 << 20


def plan_engine(
    options: LoaderOptions, layout: SlabLayout, sizes: ReadSizes, *, runs_user_code: bool, busy_threads: int = 0
) -> EnginePlan:
    """Return the number of workers, readers and slabs, and the memory for each.

    Unless `runs_user_code`, threads may decode while worker processes start. `busy_threads` are threads of this process
    that keep one core busy each; where there are cores enough, these cores are not given to workers.
    """
    executor = choose_executor(options.engine, runs_user_code=runs_user_code)
    cores, local = loader_cores(), local_rank()
    cores -= busy_threads if cores > 2 * busy_threads else 0
    workers = options.num_workers or min(WORKERS, cores)
    demand = MemoryDemand(
        slab_bytes=layout.size,
        block_bytes=int(sizes.block_sizes.mean()) if len(sizes.block_sizes) else 0,
        largest_block_bytes=int(sizes.block_sizes.max(initial=0)),
        blocks_in_use=sizes.blocks_in_use,
        processes=workers if executor == "process" else 0,
    )
    shares = share_memory(options.engine.memory_bytes or default_budget() // local.world_size, demand)
    max_workers = options.num_workers or min(cores, workers + shares.more_processes)
    num_readers = options.reading.num_readers
    return EnginePlan(
        executor,
        workers,
        num_readers or (REMOTE_READERS if sizes.remote else READERS),
        shares.slabs,
        layout.size,
        shares.arena_bytes,
        options.engine.timeout_s,
        max_workers=max_workers,
        max_readers=0 if num_readers else MAX_READERS,
        stopgaps=not runs_user_code,
        batch_size=layout.batch_size,
        filled_bytes=layout.filled_bytes,
        cores=worker_cores(max_workers, local.rank) if options.engine.worker_affinity else (),
    )


def choose_executor(engine: EngineOptions, *, runs_user_code: bool) -> Literal["process", "thread"]:
    """Return the executor the user has set; else processes, or threads without a GIL, on Windows or on one core.

    On one core the user's code runs in a process nevertheless: only there can the global random generators be seeded
    for each sample, because threads share them with the training loop.
    """
    if engine.executor != "auto":
        if engine.executor == "process" and sys.platform == "win32":
            raise SettingError("worker processes are not available on Windows", advice="Use executor='thread'")
        return engine.executor
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    one_core = rank_cores() == 1 and not runs_user_code
    return "thread" if sys.platform == "win32" or free_threaded or one_core else "process"


# -- memory --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """The memory that a loader could use."""

    slab_bytes: int
    block_bytes: int
    """Bytes of a typical block."""
    largest_block_bytes: int
    blocks_in_use: int
    """Blocks that are needed at a time: as many as there are lanes, if the order is shuffled."""
    processes: int
    """Worker processes at first."""


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """How a memory budget is divided."""

    slabs: int
    arena_bytes: int
    more_processes: int
    """Worker processes for which there is memory besides those of the demand."""


def share_memory(budget_bytes: int, demand: MemoryDemand) -> MemoryShares:
    """Divide the budget: first the slabs that are needed, then the arena, then more slabs."""
    worker_bytes = demand.processes * PROCESS_BYTES
    min_arena = max(MIN_ARENA_BYTES, 2 * demand.largest_block_bytes)
    needed = MIN_SLABS * demand.slab_bytes + min_arena + worker_bytes
    if needed > budget_bytes:
        raise SettingError(
            f"a memory budget of {budget_bytes >> 20} MiB is too small: {MIN_SLABS} batches of "
            f"{demand.slab_bytes >> 20} MiB, {min_arena >> 20} MiB for blocks and {worker_bytes >> 20} MiB "
            f"for workers make {(needed >> 20) + 1} MiB",
            stage="plan",
            advice="Give more memory, a smaller batch_size, or fewer workers",
        )
    wanted_arena = max(min_arena, 2 * demand.blocks_in_use * demand.block_bytes)
    arena = min(wanted_arena, budget_bytes - worker_bytes - MIN_SLABS * demand.slab_bytes)
    fitting = (budget_bytes - worker_bytes - arena) // demand.slab_bytes
    slabs = min(fitting, MAX_SLABS, max(SOME_SLABS, budget_bytes // 8 // demand.slab_bytes))
    left_bytes = budget_bytes - worker_bytes - arena - slabs * demand.slab_bytes
    return MemoryShares(slabs, arena, left_bytes // PROCESS_BYTES)


def default_budget() -> int:
    """Return a quarter of the memory that is free on the machine, or in the container."""
    return free_bytes() // FREE_DIVISOR
