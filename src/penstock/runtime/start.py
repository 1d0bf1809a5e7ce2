"""Starts and stops what runs for a loader: the engine, its slabs, and the transfer of batches to the device."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from penstock.data.batch.delivery import Delivery
from penstock.data.batch.slab_pool import SlabPool
from penstock.data.device.device_stage import DevicePlan
from penstock.data.device.static_buffers import StaticBuffers
from penstock.data.device.transfer import Transfer, check_device, choose_transfer
from penstock.data.order.ranks import find_ranks
from penstock.data.sources.base import Source
from penstock.engine import worker_main
from penstock.engine.engine import Engine
from penstock.errors import SettingError
from penstock.options import LoaderOptions
from penstock.runtime.engine_size import plan_engine


@dataclass(frozen=True)
class RunningEngine:
    """A running engine and what belongs to it.

    It has no reference to its loader, so that the loader's finalizer can stop it.
    """

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
    plan = plan_engine(
        options,
        layout,
        source.read_sizes(),
        runs_user_code=source.runs_user_code,
        busy_threads=device_plan.sender_threads,
    )
    stage = device_plan.make_stage(options.device, plan.max_workers)
    engine = Engine(source.block_source, source.worker_program(layout), plan)
    if stage.split_controller is not None:
        stage.split_controller.workers_ready = engine.is_settled
    try:
        slabs = SlabPool(engine.slabs.view, plan.slabs, engine.scheduler.release)
        transfer = choose_transfer(options.device, engine.slabs.view, layout.size, layout.filled_bytes, stage)
        several_ranks = find_ranks(options.rank, options.world_size).world_size > 1
        delivery = Delivery(
            layout, slabs, source, options.errors, transfer, static_buffers, several_ranks=several_ranks
        )
    except BaseException:
        engine.close()
        raise
    return RunningEngine(engine, delivery, layout.batch_size, slabs, transfer, source)
