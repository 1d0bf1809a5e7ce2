"""Starts and stops everything that runs for a loader: the engine, its slabs, and the transfer of batches to the
device."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.cores import loader_cores, rank_cores, worker_cores
from penstock.core.ranks import local_rank
from penstock.core.slab_layout import SlabLayout
from penstock.data.batch.delivery import Delivery
from penstock.data.batch.slab_pool import SlabPool
from penstock.data.device.device_stage import DevicePlan
from penstock.data.device.static_buffers import StaticBuffers
from penstock.data.device.transfer import Transfer, check_device, choose_transfer
from penstock.data.sources.base import Source
from penstock.engine import worker_main
from penstock.engine.engine import Engine, EnginePlan
from penstock.engine.memory_budget import MemoryDemand, default_budget, share_memory
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


def plan_engine(
    options: LoaderOptions,
    layout: SlabLayout,
    block_sizes: NDArray[np.int64],
    blocks_in_use: int,
    *,
    runs_user_code: bool,
    remote: bool = False,
    busy_threads: int = 0,
) -> EnginePlan:
    """Return the number of workers, readers and slabs, and the memory for each.

    Unless `runs_user_code`, threads may decode while worker processes start.
    `busy_threads` are threads of this process that keep one core busy each; where there are cores enough, these cores
    are not given to workers.
    """
    executor = choose_executor(options.engine)
    cores, local = loader_cores(), local_rank()
    cores -= busy_threads if cores > 2 * busy_threads else 0
    workers = options.num_workers or min(WORKERS, cores)
    demand = MemoryDemand(
        slab_bytes=layout.size,
        block_bytes=int(block_sizes.mean()) if len(block_sizes) else 0,
        largest_block_bytes=int(block_sizes.max(initial=0)),
        blocks_in_use=blocks_in_use,
        processes=workers if executor == "process" else 0,
    )
    shares = share_memory(options.engine.memory_bytes or default_budget() // local.world_size, demand)
    most_workers = options.num_workers or min(cores, workers + shares.more_processes)
    num_readers = options.reading.num_readers
    return EnginePlan(
        executor,
        workers,
        num_readers or (REMOTE_READERS if remote else READERS),
        shares.slabs,
        layout.size,
        shares.arena_bytes,
        options.engine.timeout_s,
        most_workers=most_workers,
        most_readers=0 if num_readers else MAX_READERS,
        stopgaps=not runs_user_code,
        batch_size=layout.batch_size,
        filled_bytes=layout.filled_bytes,
        cores=worker_cores(most_workers, local.rank) if options.engine.worker_affinity else (),
    )


def choose_executor(engine: EngineOptions) -> Literal["process", "thread"]:
    """Return the executor the user has set; else processes, or threads on one core, without a GIL or on Windows."""
    if engine.executor != "auto":
        if engine.executor == "process" and sys.platform == "win32":
            raise SettingError("worker processes are not available on Windows", advice="Use executor='thread'")
        return engine.executor
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return "thread" if sys.platform == "win32" or free_threaded or rank_cores() == 1 else "process"


@dataclass(frozen=True)
class RunningEngine:
    """A running engine and all that belongs to it. It holds no reference to its loader, whose finalizer calls
    `stop`."""

    engine: Engine
    delivery: Delivery
    slab_samples: int
    """Samples that fit into a slab."""
    _slabs: SlabPool
    _transfer: Transfer
    _source: Source

    def stop(self) -> None:
        """Stop all threads and processes and close all files. Batches that the user still holds stay valid."""
        if not self.engine.is_ours:
            return
        with ExitStack() as cleanup:  # every step runs, although a broken GPU may make any of them fail
            for step in (self._source.close, self.engine.close, self._slabs.close, self._transfer.close):
                cleanup.callback(step)


def start_engine(
    source: Source,
    options: LoaderOptions,
    device_plan: DevicePlan,
    static_buffers: StaticBuffers | None,
    slab_samples: int,
) -> RunningEngine:
    """Start an engine whose slabs hold batches of up to `slab_samples` samples."""
    if worker_main.importing_main:
        raise SettingError(
            "a worker imports the script for the dataset that it defines, and the script starts its training",
            advice='Put what starts it under `if __name__ == "__main__":`, or the dataset into a module of its own',
        )
    check_device(options.device)
    layout = source.slab_layout(slab_samples)
    plan = _plan(source, options, device_plan, layout)
    stage = device_plan.make_stage(options.device, plan.most_workers)
    engine = Engine(source.block_source, source.worker_program(layout), plan)
    if stage.split_controller is not None:
        stage.split_controller.workers_ready = engine.is_settled
    try:
        slabs = SlabPool(engine.slabs.view, plan.slabs, engine.conductor.release)
        transfer = choose_transfer(options.device, engine.slabs.view, layout.size, layout.filled_bytes, stage)
        delivery = Delivery(layout, slabs, source, options.errors, transfer, static_buffers)
    except BaseException:
        engine.close()
        raise
    return RunningEngine(engine, delivery, layout.batch_size, slabs, transfer, source)


def _plan(source: Source, options: LoaderOptions, device_plan: DevicePlan, layout: SlabLayout) -> EnginePlan:
    sizes = source.read_sizes()
    return plan_engine(
        options,
        layout,
        sizes.block_sizes,
        sizes.blocks_in_use,
        runs_user_code=source.runs_user_code,
        remote=sizes.remote,
        busy_threads=device_plan.sender_threads,
    )
