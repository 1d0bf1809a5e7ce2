"""What can be iterated over, and what each kind shows of itself while it is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.core.stats import LoaderStats
from penstock.recording.format import AnyLine, HopsLine, LoaderLine, LoaderSetting, StoreRequests
from penstock.storage.object_store.io_thread import store_counts
from penstock.watcher.dataloader.worker_files import WorkerFiles


class LoaderState(NamedTuple):
    """How a loader stood when the loop asked."""

    ready: int | None = None
    outstanding: int | None = None
    worker: int | None = None


class WaitParts(msgspec.Struct, frozen=True):
    """Of one wait."""

    sampler_s: float = 0.0
    """Drawing indices."""
    idle_s: float | None = None
    """Until a batch began to arrive."""


NOTHING = LoaderState()
UNKNOWN = WaitParts()
_PLAIN = frozenset((list, tuple, dict))
_THINGS = (str, bytes, int, float, dict)


class LoaderView(Protocol):
    """One kind of loader, as the watcher sees it."""

    number: int
    """Of the loader, in this run."""

    def describe(self) -> LoaderLine:
        """Its settings."""
        ...

    def iterator(self, number: int) -> Iterator[Any]:
        """What iter() gives for a pass of that number."""
        ...

    def look(self, iterator: Iterator[Any]) -> LoaderState:
        """Asked before every batch: microseconds."""
        ...

    def parts(self, iterator: Iterator[Any]) -> WaitParts:
        """Asked after every batch: what is known of the wait."""
        ...

    def processes(self) -> dict[int, int]:
        """Worker processes of now: pid → worker."""
        ...

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Asked once a second, on another thread: lines of its own."""
        ...


def view_of(loader: Iterable[Any], number: int, name: str, spool: WorkerFiles, began: float) -> LoaderView:
    """The adapter for a loader."""
    if _is(loader, "torch.utils.data", "DataLoader"):
        from penstock.watcher.dataloader.main_process import TorchLoaderView

        return TorchLoaderView(loader, number, name, spool, began)
    if _is(loader, "penstock.loader", "Loader"):
        return PenstockLoaderView(loader, number, name)
    return PlainLoaderView(loader, number, name)


def _is(loader: object, module: str, kind: str) -> bool:
    """Without importing it: whoever has a DataLoader has torch."""
    found = sys.modules.get(module)
    return found is not None and isinstance(loader, getattr(found, kind))


class PlainLoaderView:
    """Any iterable: nothing is known but its times."""

    def __init__(self, loader: Iterable[Any], number: int, name: str) -> None:
        self.loader = loader
        self.number = number
        self.name = name

    def describe(self) -> LoaderLine:
        """Its class and, if it has one, its length."""
        kind = type(self.loader)
        dataset = f"{kind.__module__}.{kind.__qualname__}"
        return LoaderLine(loader=self.number, name=self.name, dataset=dataset, batches=length_of(self.loader))

    def iterator(self, number: int) -> Iterator[Any]:
        """Its own."""
        return iter(self.loader)

    def look(self, iterator: Iterator[Any]) -> LoaderState:
        """Nothing."""
        return NOTHING

    def parts(self, iterator: Iterator[Any]) -> WaitParts:
        """Nothing is known."""
        return UNKNOWN

    def processes(self) -> dict[int, int]:
        """None that we know of."""
        return {}

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Nothing."""
        return ()


class PenstockLoaderView(PlainLoaderView):
    """A penstock.Loader: its hops once a second."""

    loader: Any

    def __init__(self, loader: Any, number: int, name: str) -> None:
        super().__init__(loader, number, name)
        self._changes: tuple[str, ...] = ()

    def describe(self) -> LoaderLine:
        """What drop-in code may ask a loader, and its batches."""
        settings = {
            name: LoaderSetting(requested=value, in_force=value)
            for name in ("batch_size", "num_workers", "drop_last")
            if isinstance(value := getattr(self.loader, name, None), int | None)
        }
        return LoaderLine(
            loader=self.number,
            name=self.name,
            type="penstock",
            settings=settings,
            dataset="penstock.Loader",
            batches=length_of(self.loader),
        )

    def look(self, iterator: Iterator[Any]) -> LoaderState:
        """The hops say it better: asking the engine at every step would cost more than it tells."""
        return NOTHING

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """The hops' three numbers and how the knobs stand."""
        stats: LoaderStats = self.loader.stats()
        engine = stats.engine
        new, self._changes = _after(self._changes, engine.changes), engine.changes
        hops = {hop.name: (hop.busy_s, hop.starved_s, hop.blocked_s) for hop in stats.hops}
        return [
            HopsLine(
                loader=self.number,
                at_s=at_s,
                hops=hops,
                workers=engine.workers,
                readers=engine.readers,
                lookahead=engine.lookahead,
                ready=engine.ready_batches,
                bytes_read=engine.bytes_read,
                store=_store(),
                changes=new,
                gpu_times=None if stats.gpu_times is None else astuple(stats.gpu_times),
            )
        ]


def _store() -> StoreRequests | None:
    """What this process asked of stores so far."""
    if not store_counts.answers:
        return None
    return StoreRequests(
        answers=store_counts.answers,
        bytes_read=store_counts.bytes_read,
        answer_s=store_counts.answer_s,
        body_s=store_counts.body_s,
        retries=store_counts.retries,
    )


def count_samples(batch: object) -> int | None:
    """How many samples a batch has: the first length of its first array, or its own if it is a list of plain things.

    None if it has no length; never an error, whatever a batch may be: torch's nested tensors have a shape that raises.
    """
    try:
        return _samples(batch)
    except Exception:
        return None


def _samples(batch: object) -> int | None:
    for _ in range(4):  # nested structures, but not without end
        kind = type(batch)
        if kind not in _PLAIN:  # plain containers are most batches, and asking them for a shape is dear
            shape = getattr(batch, "shape", None)
            if isinstance(shape, tuple):
                return int(shape[0]) if shape else None
        if kind is dict or (kind not in _PLAIN and isinstance(batch, Mapping)):
            batch = next(iter(batch.values()), None)  # type: ignore[attr-defined]
        elif isinstance(batch, list | tuple) and batch:
            inner = batch[0]
            if isinstance(inner, _THINGS):
                return len(batch)
            batch = inner
        else:
            return None
    return None


def _after(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """What is new in the last of something, of which the earliest may have gone."""
    for gone in range(len(before)):
        if now[: len(before) - gone] == before[gone:]:
            return now[len(before) - gone :]
    return now


def length_of(loader: object) -> int | None:
    """None where it does not tell, or its own __len__ raises."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except Exception:  # of the user's own: his loop may never ask
        return None
