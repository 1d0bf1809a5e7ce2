"""The batches of a pass as they come: waited for in order, and set on their way to the device a little ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.data.batch.delivery import CompleteBatch, Delivery, PreparedBatch
from penstock.data.order.batch_lookahead import BatchLookahead
from penstock.data.order.batches import BatchIndices


class DevicePrefetch:
    """One that is complete sets off before the one ahead of it is handed over, so that the way hides behind a step."""

    def __init__(
        self,
        ahead: BatchLookahead,
        delivery: Delivery,
        take: Callable[[int], CompleteBatch],
        is_complete: Callable[[int], bool],
    ) -> None:
        """`take` waits for a batch by its number; `is_complete` says whether it would have to."""
        self._ahead = ahead
        self._delivery = delivery
        self._take = take
        self._is_complete = is_complete
        self._on_way: deque[tuple[BatchIndices, PreparedBatch | Exception]] = deque()

    @property
    def over(self) -> bool:
        """Whether nothing follows what was handed over last."""
        return not self._on_way and self._ahead.over

    def wait(self) -> BatchIndices | None:
        """For the next batch; None after the last, and before one that needs a larger slab."""
        self._delivery.asked()
        if not self._on_way:
            following = self._ahead.next_delivered()
            if following is None:
                return None
            number, portion = following
            self._delivery.make_room()
            self._on_way.append((portion, self._delivery.prepare(self._take(number))))
        return self._on_way[0][0]

    def hand_over(self) -> Any:
        """What was waited for."""
        _, prepared = self._on_way.popleft()
        if isinstance(prepared, Exception):
            raise prepared
        lead = self._delivery.lead
        if len(self._on_way) < lead.least:
            self._set_off(lead.most)
        return self._delivery.hand_over(prepared)

    def _set_off(self, most: int) -> None:
        """What goes wrong with a batch is raised in its turn, and nothing sets off behind it."""
        while len(self._on_way) < most and not self._failed:
            number = self._ahead.next_number
            if number is None or not self._is_complete(number):
                return
            following = self._ahead.next_delivered()
            assert following is not None
            self._delivery.make_room()
            try:
                self._on_way.append((following[1], self._delivery.prepare(self._take(number))))
            except Exception as error:
                self._on_way.append((following[1], error))

    @property
    def _failed(self) -> bool:
        return bool(self._on_way) and isinstance(self._on_way[-1][1], Exception)
