"""The batches of an epoch, drawn ahead of the engine in the training loop's own thread.

A sampler is the user's code: it may be endless, and it may draw from torch's global random generator. So it is iterated
where a DataLoader would iterate it, in the thread of the training loop, and only a few batches further than the engine
can plan before the training loop asks for its next batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Self

from penstock.core.contracts import BatchRequest
from penstock.errors import PenstockError

DRAWN_FIRST = 64
"""Batches drawn before the slabs are made: a slab must have space for the largest of them."""
DRAW_CHUNK = 8
"""Batches drawn at a time after that. Between two training steps the code is no longer in the CPU's caches, and
drawing one batch takes as long as drawing the next several together."""


class BatchLookahead:
    """A queue of batch requests with two readers.

    The training loop's thread draws batches and takes those that it delivers next (`next_batch`); the engine's thread
    iterates over the same batches to make them.
    """

    def __init__(self, batches: Iterator[BatchRequest], numbers: Iterator[int]) -> None:
        """`numbers` numbers the batches when they are released to the engine."""
        self._undrawn = batches
        self._numbers = numbers
        self._drawn = deque(islice(batches, DRAWN_FIRST))
        self._to_make: deque[BatchRequest] = deque()
        self._to_deliver: deque[BatchRequest] = deque()
        self._slab_samples = self._min_ahead = 0
        self._ended = False
        """Whether this engine gets no more batches than those already released."""

    @property
    def largest_batch(self) -> int:
        """The number of samples in the largest batch that is drawn and not released; 0 if there is none."""
        return max((len(request.samples) for request in self._drawn), default=0)

    def start(self, slab_samples: int, min_ahead: int) -> None:
        """Start to release batches of at most `slab_samples` samples to the engine.

        From now on at least `min_ahead` batches are released and not delivered, unless the next one is too large.
        """
        self._slab_samples, self._min_ahead, self._ended = slab_samples, min_ahead, False
        self._release(min_ahead)

    @property
    def exhausted(self) -> bool:
        """Whether the last batch of the epoch has been delivered."""
        return not self._to_deliver and not self._drawn

    @property
    def next_number(self) -> int | None:
        """The number of the batch that `next_batch` would return; None if it would return None."""
        return self._to_deliver[0].number if self._to_deliver else None

    def next_batch(self) -> BatchRequest | None:
        """Take the batch to deliver next; None after the last one, and before one that needs a larger slab."""
        if not self._to_deliver:
            return None
        request = self._to_deliver.popleft()
        if len(self._to_deliver) < self._min_ahead:
            self._release(self._min_ahead + DRAW_CHUNK - 1)
        return request

    def _release(self, count: int) -> None:
        """Draw and release batches until `count` are released and not delivered."""
        while len(self._to_deliver) < count:
            if not self._drawn:
                self._drawn.extend(islice(self._undrawn, 1))
            if not self._drawn or len(self._drawn[0].samples) > self._slab_samples:
                self._ended = True
                return
            request = replace(self._drawn.popleft(), number=next(self._numbers))
            self._to_deliver.append(request)
            self._to_make.append(request)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BatchRequest:
        ended = self._ended  # read before the queue: a batch released after that would otherwise be missed
        try:
            return self._to_make.popleft()
        except IndexError:
            if ended:
                raise StopIteration from None
            raise PenstockError(
                "the engine asked for a batch that is not drawn yet: this is a defect of Penstock", stage="plan"
            ) from None
