"""What the wait for a batch consists of, in torch's iterators: stopwatches that can be put in and taken out.

torch's internals are asked for by name and may be missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any, NamedTuple


def time_wait(iterator: Any) -> None:
    """Stopwatches around what a wait consists of: drawing indices, and waiting for a batch to arrive."""
    _time_sampler(iterator)
    _time_poll(iterator)


def spare_wait(iterator: Any) -> None:
    """Without them, until they are put in again: each costs a call."""
    sampler, queue = getattr(iterator, "_sampler_iter", None), getattr(iterator, "_data_queue", None)
    poll = getattr(queue, "_poll", None)
    if type(sampler) is TimedSampler:
        iterator._sampler_iter = sampler.inner
    if type(poll) is TimedPoll:
        queue._poll = poll.inner  # type: ignore[union-attr]


class Queued(NamedTuple):
    """How many batches lie in the queue to the loop: base + sign × asked(), without a call of Python code."""

    base: int
    sign: int
    asked: Callable[[], int]


def queued(iterator: Any) -> Queued | None:
    """None where `look` has to be asked: without workers, out of order, with another torch, on macOS."""
    queue = getattr(iterator, "_data_queue", None)
    try:
        if not getattr(iterator, "_in_order", True):
            return None
        if isinstance(queue, Queue):  # of the thread that pins
            return Queued(0, 1, queue.queue.__len__)
        free: Callable[[], int] = queue._sem._semlock._get_value  # type: ignore[union-attr]
        free()
        return Queued(queue._maxsize, -1, free)  # type: ignore[union-attr]
    except (AttributeError, NotImplementedError):
        return None


def _time_sampler(iterator: Any) -> None:
    sampler = getattr(iterator, "_sampler_iter", None)
    ours = type(sampler) is TimedSampler
    if sampler is not None and not ours and type(iterator).__module__ == "torch.utils.data.dataloader":
        iterator._sampler_iter = TimedSampler(sampler)


def _time_poll(iterator: Any) -> None:
    """The queue of the workers' batches; not that of a thread which pins them."""
    queue = getattr(iterator, "_data_queue", None)
    poll = getattr(queue, "_poll", None)
    if poll is not None and not isinstance(poll, TimedPoll):
        queue._poll = TimedPoll(poll)  # type: ignore[union-attr]


class TimedPoll:
    """A queue's wait for its next message."""

    def __init__(self, poll: Callable[..., bool]) -> None:
        self.seconds = 0.0
        self.inner = poll

    def __call__(self, *args: Any) -> bool:
        """As the queue's own."""
        began = time.perf_counter()
        try:
            return self.inner(*args)
        finally:
            self.seconds += time.perf_counter() - began


class TimedSampler:
    """A sampler's iterator and the time it takes."""

    def __init__(self, sampler: Iterator[Any]) -> None:
        self.seconds = 0.0
        self.inner = sampler

    def __iter__(self) -> TimedSampler:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        try:
            return next(self.inner)
        finally:
            self.seconds += time.perf_counter() - began
