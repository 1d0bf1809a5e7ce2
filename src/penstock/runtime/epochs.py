"""A pass over a loader, and the one that comes next: made while the loop is still at its last steps of the one before.

A pass that begins only when it is asked for begins with empty hands: its blocks are read and its first batch is made
while the card waits. In a training of short epochs that is every few seconds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from penstock.data.order.batch_lookahead import BatchLookahead
from penstock.data.sources.base import EpochShare, Source
from penstock.data.sources.shards import ShardSource
from penstock.engine.batch import BatchRequest
from penstock.engine.engine import Engine
from penstock.engine.scheduler import PLANNED, EpochRequest
from penstock.errors import PenstockError

REPEATED = 2
"""Passes after which there will be another, most likely. What is made after the last one is made in vain: as many
batches as the engine looks ahead, and as much reading as its arena holds."""


@dataclass(frozen=True, slots=True)
class EpochRun:
    """What is left of an epoch, and as much of it as the loop has drawn."""

    epoch: int
    share: EpochShare
    ahead: BatchLookahead

    def begin(self, engine: Engine, room: int) -> None:
        """Have the engine make its batches, as far as slabs for so many samples hold them."""
        self.ahead.open(room, PLANNED + engine.plan.slabs + 1)
        jobs = (BatchRequest(number, self.epoch, portion.samples, self.share.whole) for number, portion in self.ahead)
        engine.begin(EpochRequest(jobs, self.share.uses, self.share.worker_read_bytes))


class EpochSequence:
    """Over one feed. Guesses what is asked for next where the order is ours: a user's sampler may change until then."""

    def __init__(self, feed: Source) -> None:
        self._feed = feed
        self._numbers = itertools.count()
        """Of batches, over all passes."""
        self._may_guess = isinstance(feed, ShardSource)
        self._asked = 0
        self._begun: EpochRun | None = None

    def ask(self, epoch: int, position: int) -> tuple[EpochRun, bool]:
        """What is left of that epoch, and whether the engine is at it. One wrong guess, and there is no other."""
        self._asked += 1
        begun, self._begun = self._begun, None
        if begun is not None and (begun.epoch, 0) == (epoch, position):
            return begun, True
        self._may_guess = self._may_guess and begun is None
        return self._over(epoch, position), False

    def look_further(self, this: EpochRun, named: int | None, engine: Engine, room: int) -> None:
        """If all of this pass is made, have the engine begin with what is likely to be asked for next.

        That is the epoch that somebody has named meanwhile, or the one after this.
        """
        if not self._may_guess or self._asked < REPEATED or self._begun is not None or not this.ahead.over:
            return
        try:
            following = self._over(this.epoch + 1 if named is None else named, 0)
        except PenstockError:  # a shard is gone, say: whoever asks for that pass will hear it
            return
        following.begin(engine, room)
        self._begun = following

    def forget(self) -> None:
        """The engine is gone, and what it has made."""
        self._begun = None

    def _over(self, epoch: int, position: int) -> EpochRun:
        share = self._feed.share(epoch, position)
        return EpochRun(epoch, share, BatchLookahead(share.portions, self._numbers))
