"""All that runs for a loader: engine, slabs, and the way from there to the training loop; begun and ended as one."""

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
from penstock.data.batch.delivery import Delivery, SlabPool
from penstock.data.device.device_stage import DevicePlan
from penstock.data.device.host import Transfer, check_device, choose_transfer
from penstock.data.device.static_buffers import StaticBuffers
from penstock.data.sources.base import Source
from penstock.engine import worker_main as worker
from penstock.engine.engine import Engine, EnginePlan
from penstock.engine.memory_budget import MemoryDemand, default_budget, share_memory
from penstock.errors import SettingError
from penstock.options import EngineSettings, ErrorSettings

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
    cores, here = loader_cores(), local_rank()
    cores -= senders if cores > 2 * senders else 0
    workers = settings.workers or min(WORKERS, cores)
    demand = MemoryDemand(
        slab_bytes=layout.size,
        block_bytes=int(block_sizes.mean()) if len(block_sizes) else 0,
        largest_block_bytes=int(block_sizes.max(initial=0)),
        blocks_in_use=blocks_in_use,
        processes=workers if executor == "process" else 0,
    )
    shares = share_memory(settings.memory_bytes or default_budget() // here.world_size, demand)
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


@dataclass(frozen=True)
class RuntimeSettings:
    """What a loader was told, as far as it matters here."""

    device: str
    engine: EngineSettings
    errors: ErrorSettings
    plans: DevicePlan
    """What is done to batches where they arrive."""
    stable: StaticBuffers | None


@dataclass(frozen=True)
class RunningEngine:
    """Knows nothing of its loader, which may so become garbage and end it."""

    engine: Engine
    delivery: Delivery
    room: int
    """Samples that fit into a slab."""
    _slabs: SlabPool
    _way: Transfer
    _feed: Source

    def stop(self) -> None:
        """Nothing is left running or open; batches that somebody still holds stay valid."""
        if not self.engine.is_ours:
            return
        with ExitStack() as last_first:  # all of it, though a broken card may fail in any of it
            for step in (self._feed.close, self.engine.close, self._slabs.close, self._way.close):
                last_first.callback(step)


def start_engine(feed: Source, settings: RuntimeSettings, room: int) -> RunningEngine:
    """With slabs that have room for that many samples."""
    if worker.importing_main:
        raise SettingError(
            "a worker imports the script for the dataset that it defines, and the script starts its training",
            advice='Put what starts it under `if __name__ == "__main__":`, or the dataset into a module of its own',
        )
    check_device(settings.device)
    layout = feed.layout(room)
    plan = _plan(feed, settings, layout)
    arrival = settings.plans.begin(settings.device, plan.most_workers, feed.supply)
    engine = Engine(feed.supply, feed.work(layout), plan)
    if arrival.balance is not None:
        arrival.balance.settled = engine.is_settled
    try:
        slabs = SlabPool(engine.slabs.view, plan.slabs, engine.conductor.release)
        way = choose_transfer(settings.device, engine.slabs.view, layout.size, layout.filled_bytes, arrival)
        delivery = Delivery(layout, slabs, feed, settings.errors, way, settings.stable)
    except BaseException:
        engine.close()
        raise
    return RunningEngine(engine, delivery, layout.batch_size, slabs, way, feed)


def _plan(feed: Source, settings: RuntimeSettings, layout: SlabLayout) -> EnginePlan:
    reading = feed.reading()
    return plan_engine(
        settings.engine,
        layout,
        reading.block_sizes,
        reading.blocks_in_use,
        own_code=feed.own_code,
        remote=reading.remote,
        senders=settings.plans.senders,
    )
