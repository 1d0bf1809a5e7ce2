"""The next batch is on its way to the device while the loop computes with this one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from penstock.errors import SettingError
from penstock.train.transfer import mapped, to_device

MOST_HELD = 4
"""Batches in host memory whose copies may still be under way: a loop that is further ahead waits for the device."""

LOOK_AGAIN_S = 20e-6


class Prefetcher:
    """Around any loader: `for batch in Prefetcher(loader, "cuda")` has its tensors on the device, one batch ahead.

    Copies go over a stream of their own. What a loader has besides (`dataset`, `sampler`, `set_epoch`) is found here,
    too, and its `state_dict` is that of the batch the loop has, not of the one ahead.
    """

    def __init__(self, loader: Iterable[Any], device: str | torch.device, *, pin: bool = False) -> None:
        self._loader = loader
        self._device = torch.device(device)
        self._pin = pin
        self._state: Any = None

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        way = _StreamTransfer(self._device, self._pin) if self._device.type == "cuda" else _DirectTransfer(self._device)
        batches = iter(self._loader)
        sent = self._send(batches, way)
        while sent is not None:
            self._state = self._loader_state()
            following = self._send(batches, way)
            yield way.arrived(sent)
            sent = following
        self._state = None

    def _send(self, batches: Iterator[Any], way: _Transfer) -> _SentBatch | None:
        for batch in batches:
            return way.send(batch)
        return None

    def _loader_state(self) -> Any:
        state = getattr(self._loader, "state_dict", None)
        return state() if callable(state) else None

    def state_dict(self) -> Any:
        """The loader's, as it was after the batch that the loop has now."""
        if not callable(getattr(self._loader, "state_dict", None)):
            raise SettingError(f"{type(self._loader).__name__} has no state_dict")
        return self._state if self._state is not None else self._loader_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The loader goes on from there."""
        self._state = None
        self._loader.load_state_dict(state)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not ours either: a copy or an unpickled one asks before anything is set
            raise AttributeError(name)
        return getattr(self._loader, name)


@dataclass(frozen=True, slots=True)
class _SentBatch:
    batch: Any
    event: Any = None


class _Transfer(Protocol):
    def send(self, batch: Any) -> _SentBatch: ...
    def arrived(self, sent: _SentBatch) -> Any: ...


class _DirectTransfer:
    """Where there is nothing to overlap with."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, batch: Any) -> _SentBatch:
        return _SentBatch(to_device(batch, self._device))

    def arrived(self, sent: _SentBatch) -> Any:
        return sent.batch


class _StreamTransfer:
    """Copies beside the computing. A source is held until its copy is done: its memory may be used again after that."""

    def __init__(self, device: torch.device, pin: bool) -> None:
        self._device = device
        self._pin = pin
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._held: deque[tuple[torch.cuda.Event, Any]] = deque()

    def send(self, batch: Any) -> _SentBatch:
        with torch.cuda.stream(self._stream):
            moved = to_device(batch, self._device, pin=self._pin)
        event = self._stream.record_event()
        self._held.append((event, batch))
        self._let_go()
        return _SentBatch(moved, event)

    def _let_go(self) -> None:
        """By looking again, not by synchronising: torch's own check for synchronisations would blame the loop."""
        while len(self._held) > MOST_HELD and not self._done():
            time.sleep(LOOK_AGAIN_S)
        while self._held and self._done():
            self._held.popleft()

    def _done(self) -> bool:
        return bool(self._held[0][0].query())  # type: ignore[no-untyped-call]

    def arrived(self, sent: _SentBatch) -> Any:
        """The computing waits for the copy on the device, the loop does not."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(sent.event)

        def used(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(stream)
            return leaf

        return mapped(sent.batch, used)
