"""The batches of an epoch in order, sent to the device a little before they are delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.core.contracts import BatchRequest, CompleteBatch
from penstock.data.batch.delivery import Delivery
from penstock.data.order.batch_lookahead import BatchLookahead


class DevicePrefetch:
    """Sends complete batches before the one ahead of them is delivered, so that a copy overlaps with a training step.

    For each batch, the training loop calls `wait` and then `deliver`.
    """

    def __init__(
        self,
        lookahead: BatchLookahead,
        delivery: Delivery,
        wait_for: Callable[[int], CompleteBatch],
        is_complete: Callable[[int], bool],
    ) -> None:
        """`wait_for` waits for a batch by its number; `is_complete` says whether that would return at once."""
        self._lookahead = lookahead
        self._delivery = delivery
        self._wait_for = wait_for
        self._is_complete = is_complete
        self._in_transfer: deque[tuple[BatchRequest, Any | Exception]] = deque()
        """Batches that are sent and not delivered; an exception in place of one that failed."""

    @property
    def exhausted(self) -> bool:
        """Whether no batch follows the one that was delivered last."""
        return not self._in_transfer and self._lookahead.exhausted

    def wait(self) -> BatchRequest | None:
        """Wait for the next batch; return None after the last one, and before one that needs a larger slab."""
        self._delivery.batch_requested()
        if not self._in_transfer:
            request = self._lookahead.next_batch()
            if request is None:
                return None
            self._delivery.reclaim_slabs()
            self._in_transfer.append((request, self._delivery.send(self._wait_for(request.number))))
        return self._in_transfer[0][0]

    def deliver(self) -> Any:
        """Return the batch that was waited for; SKIPPED if it has no good sample and is left out."""
        _, sent = self._in_transfer.popleft()
        if isinstance(sent, Exception):
            raise sent
        lookahead = self._delivery.lookahead
        if len(self._in_transfer) < lookahead.min_batches:
            self._send_complete(lookahead.max_batches)
        return self._delivery.deliver(sent)

    def _send_complete(self, max_batches: int) -> None:
        """Send complete batches until `max_batches` are in transfer.

        The error of a batch is raised when it is delivered, and no batch is sent behind it.
        """
        while len(self._in_transfer) < max_batches and not self._failed:
            number = self._lookahead.next_number
            if number is None or not self._is_complete(number):
                return
            request = self._lookahead.next_batch()
            assert request is not None
            self._delivery.reclaim_slabs()
            try:
                self._in_transfer.append((request, self._delivery.send(self._wait_for(number))))
            except Exception as error:
                self._in_transfer.append((request, error))

    @property
    def _failed(self) -> bool:
        return bool(self._in_transfer) and isinstance(self._in_transfer[-1][1], Exception)
