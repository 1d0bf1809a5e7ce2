"""All that runs for a loader: engine, slabs, and the way from there to the training loop; begun and ended as one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from penstock.core.layout import SlabLayout
from penstock.core.settings import EngineSettings, ErrorSettings
from penstock.engine import worker
from penstock.engine.engine import Engine, EnginePlan
from penstock.errors import SettingError
from penstock.flow.arrival import Plans
from penstock.flow.deliver import Delivery, Slabs
from penstock.flow.device import Way, check_device, find_way
from penstock.flow.feed import Feed
from penstock.flow.stable import Stable
from penstock.sizing import plan_engine


@dataclass(frozen=True)
class Settings:
    """What a loader was told, as far as it matters here."""

    device: str
    engine: EngineSettings
    errors: ErrorSettings
    plans: Plans
    """What is done to batches where they arrive."""
    stable: Stable | None


@dataclass(frozen=True)
class Running:
    """Knows nothing of its loader, which may so become garbage and end it."""

    engine: Engine
    delivery: Delivery
    room: int
    """Samples that fit into a slab."""
    _slabs: Slabs
    _way: Way
    _feed: Feed

    def stop(self) -> None:
        """Nothing is left running or open; batches that somebody still holds stay valid."""
        if not self.engine.is_ours:
            return
        with ExitStack() as last_first:  # all of it, though a broken card may fail in any of it
            for step in (self._feed.close, self.engine.close, self._slabs.close, self._way.close):
                last_first.callback(step)


def start(feed: Feed, settings: Settings, room: int) -> Running:
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
        slabs = Slabs(engine.slabs.view, plan.slabs, engine.conductor.release)
        way = find_way(settings.device, engine.slabs.view, layout.size, layout.filled_bytes, arrival)
        delivery = Delivery(layout, slabs, feed, settings.errors, way, settings.stable)
    except BaseException:
        engine.close()
        raise
    return Running(engine, delivery, layout.batch_size, slabs, way, feed)


def _plan(feed: Feed, settings: Settings, layout: SlabLayout) -> EnginePlan:
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
