"""The epochs of a loader. The next one is begun while the training loop is at the last steps of the current one.

An epoch that begins only when it is requested has nothing prepared: its blocks are read and its first batch is decoded
while the GPU waits. In a training of short epochs this happens every few seconds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from penstock.core.contracts import EpochRequest
from penstock.data.order.batch_lookahead import BatchLookahead
from penstock.data.order.checkpoint import Order
from penstock.data.sources.base import Source
from penstock.data.sources.shards import ShardSource
from penstock.engine.batch import MAX_PLANNED
from penstock.engine.engine import Engine
from penstock.errors import PenstockError

REPEATED = 2
"""Epochs after which another one is likely. What is prepared after the last epoch is wasted: as many batches as the
engine prefetches, and as much reading as its arena holds."""


@dataclass(frozen=True, slots=True)
class EpochRun:
    """The rest of one epoch, and how much of it the training loop has received."""

    epoch: int
    request: EpochRequest
    lookahead: BatchLookahead

    def begin(self, engine: Engine, slab_samples: int) -> None:
        """Let the engine make its batches, as far as they fit into slabs of that many samples."""
        self.lookahead.start(slab_samples, MAX_PLANNED + engine.plan.slabs + 1)
        engine.begin(replace(self.request, batches=self.lookahead))


class EpochSequence:
    """The epochs of one source, in the order in which they are requested.

    The next epoch is predicted only for shards in Penstock's own order: a sampler of the user may change meanwhile.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._numbers = itertools.count()
        """Numbers of the batches, over all epochs."""
        self._may_predict = isinstance(source, ShardSource)
        self._requested = 0
        """Epochs requested so far."""
        self._predicted: EpochRun | None = None
        """The epoch that the engine has begun although it was not requested yet."""

    def start(self, epoch: int, position: int, order: Order | None) -> tuple[EpochRun, bool]:
        """Return the rest of that epoch, and whether the engine has begun it already.

        After one wrong prediction no further epoch is predicted.
        """
        self._requested += 1
        predicted, self._predicted = self._predicted, None
        if (
            predicted is not None
            and (predicted.epoch, 0) == (epoch, position)
            and order in (None, predicted.request.order)
        ):
            return predicted, True
        self._may_predict = self._may_predict and predicted is None
        return self._rest_of(epoch, position, order), False

    def begin_next(self, current: EpochRun, named_epoch: int | None, engine: Engine, slab_samples: int) -> None:
        """Let the engine begin the epoch that is likely to be requested next, if all of the current one is requested.

        That is `named_epoch`, the epoch that the user has set meanwhile, or the one after the current one.
        """
        is_wanted = self._may_predict and self._requested >= REPEATED and self._predicted is None
        if not is_wanted or not current.lookahead.exhausted:
            return
        try:
            following = self._rest_of(current.epoch + 1 if named_epoch is None else named_epoch, 0)
        except PenstockError:  # for example, a shard is gone: the error is raised when the epoch is requested
            return
        following.begin(engine, slab_samples)
        self._predicted = following

    def forget_prediction(self) -> None:
        """Forget the epoch that was begun ahead of its request: its engine has been stopped."""
        self._predicted = None

    def _rest_of(self, epoch: int, position: int, order: Order | None = None) -> EpochRun:
        request = self._source.begin_epoch(epoch, position, order)
        return EpochRun(epoch, request, BatchLookahead(request.batches, self._numbers))
