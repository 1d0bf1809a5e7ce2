"""Batches of any structure to a device without waiting for the copy, and one batch ahead of the training loop."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from penstock.errors import SettingError

MAX_HELD = 4
"""Batches in host memory whose copies may be unfinished; a loop that is farther ahead waits for the device."""
POLL_S = 20e-6
"""Seconds between two checks whether the oldest copy has finished."""


def to_device(batch: Any, device: str | torch.device, *, pin: bool = False) -> Any:
    """Return the same structure with all tensors on the device: mappings, tuples, named tuples, lists, dataclasses.

    Other objects with a method `to` (a packed sequence) are moved by it, and the rest is not changed. The caller does
    not wait for copies from pinned memory; with `pin`, other memory is first copied to pinned memory.
    """
    target = torch.device(device)
    pinned = pin and target.type == "cuda"

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            source = leaf.pin_memory() if pinned and leaf.device.type == "cpu" and not leaf.is_pinned() else leaf
            return source.to(target, non_blocking=True)
        return leaf.to(target, non_blocking=True) if callable(getattr(leaf, "to", None)) else leaf

    return map_leaves(batch, move)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return an equal structure with changed leaves."""
    if isinstance(value, torch.Tensor | str | bytes):
        return change(value)
    if isinstance(value, Mapping):
        return _mapping(value, {key: map_leaves(child, change) for key, child in value.items()})
    if isinstance(value, tuple):
        made = [map_leaves(child, change) for child in value]
        # named tuples take their fields one by one; torch's packed sequence is one, and has a method to move it
        if hasattr(value, "_fields"):
            return change(value) if callable(getattr(value, "to", None)) else type(value)(*made)
        return tuple(made)
    if isinstance(value, list):
        return [map_leaves(child, change) for child in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: map_leaves(getattr(value, name), change) for name in fields})
    return change(value)


def _mapping(like: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping of the same type; a plain dict where that type cannot be filled by `update`."""
    if type(like) is dict:
        return items
    try:
        clone = copy.copy(like)
        clone.update(items)  # type: ignore[attr-defined]
    except (TypeError, AttributeError):
        return items
    return clone


class Prefetcher:
    """A wrapper of any loader: `for batch in Prefetcher(loader, "cuda")` has tensors on the device, one batch ahead.

    Copies run on a stream of their own. Other attributes of the loader (`dataset`, `sampler`, `set_epoch`) are passed
    through; `state_dict` is that of the batch that the training loop has, not of the one ahead.
    """

    def __init__(self, loader: Iterable[Any], device: str | torch.device, *, pin: bool = False) -> None:
        self._loader = loader
        self._device = torch.device(device)
        self._pin = pin
        self._state: Any = None

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        is_cuda = self._device.type == "cuda"
        transfer = _StreamTransfer(self._device, self._pin) if is_cuda else _DirectTransfer(self._device)
        batches = iter(self._loader)
        sent = self._send(batches, transfer)
        while sent is not None:
            self._state = self._loader_state()
            following = self._send(batches, transfer)
            yield transfer.receive(sent)
            sent = following
        self._state = None

    def _send(self, batches: Iterator[Any], transfer: _Transfer) -> _SentBatch | None:
        for batch in batches:
            return transfer.send(batch)
        return None

    def _loader_state(self) -> Any:
        state = getattr(self._loader, "state_dict", None)
        return state() if callable(state) else None

    def state_dict(self) -> Any:
        """Return the loader's state after the batch that the training loop has now."""
        if not callable(getattr(self._loader, "state_dict", None)):
            raise SettingError(f"{type(self._loader).__name__} has no state_dict")
        return self._state if self._state is not None else self._loader_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the loader continue from that state."""
        self._state = None
        self._loader.load_state_dict(state)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and unpickling read private attributes before they are set
            raise AttributeError(name)
        return getattr(self._loader, name)


@dataclass(frozen=True, slots=True)
class _SentBatch:
    batch: Any
    event: Any = None


class _Transfer(Protocol):
    def send(self, batch: Any) -> _SentBatch: ...
    def receive(self, sent: _SentBatch) -> Any: ...


class _DirectTransfer:
    """A transfer to a device on which copies cannot overlap with computation."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, batch: Any) -> _SentBatch:
        return _SentBatch(to_device(batch, self._device))

    def receive(self, sent: _SentBatch) -> Any:
        return sent.batch


class _StreamTransfer:
    """A transfer on a side stream that holds a batch in host memory until it is copied, as its memory may be reused."""

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
        self._release_copied()
        return _SentBatch(moved, event)

    def _release_copied(self) -> None:
        """Release the batches that are copied; wait if too many are not.

        This polls instead of synchronising, because torch's check for synchronisations would report the training loop.
        """
        while len(self._held) > MAX_HELD and not self._is_copied():
            time.sleep(POLL_S)
        while self._held and self._is_copied():
            self._held.popleft()

    def _is_copied(self) -> bool:
        return bool(self._held[0][0].query())  # type: ignore[no-untyped-call]

    def receive(self, sent: _SentBatch) -> Any:
        """Return the batch; the current stream waits for its copy, the host does not."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(sent.event)

        def record_use(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(stream)
            return leaf

        return map_leaves(sent.batch, record_use)
