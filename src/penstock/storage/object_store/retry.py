"""How failures are borne: pauses that grow and vary, within a budget of time that progress renews."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.errors import StorageError
from penstock.storage.object_store.failures import FailureKind, RequestFailure
from penstock.storage.object_store.io_thread import store_counts

_ADVICE = {
    FailureKind.CHANGED: "Let nothing write to the shards while they are read, and start again",
    FailureKind.PASSING: "Look after the network and the store; a read is tried for as long as the budget allows",
}
_CREDENTIALS_ADVICE = {
    "s3": "Set credentials in the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; "
    "AWS_SKIP_SIGNATURE=true for public buckets",
    "gs": "Set credentials in the environment: GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT; "
    "GOOGLE_SKIP_SIGNATURE=true for public buckets",
    "az": "Set credentials in the environment: AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_TOKEN; AZURE_SKIP_SIGNATURE=true for public containers",
}
_SIGNED_URL_ADVICE = "A signed address holds for a while only, and is known only to the process that it was given to"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """With whom to be patient, and for how long."""

    budget_s: float = 60.0
    """Without a single byte, tries are made for this long."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    stall_s: float = 10.0
    """A chunk (`fetch.CHUNK_BYTES`) must come within this time, or the request is given up and made again."""
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    dice: Callable[[], float] = random.random

    def pause_s(self, failures: int) -> float:
        """Before the next try: anything up to a bound that doubles, so that many readers do not come back at once."""
        return self.dice() * min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 16))


DEFAULT_RETRY_POLICY = RetryPolicy()


class RetryState:
    """The failures of one read since its last byte."""

    def __init__(self, shard: str, patience: RetryPolicy, renew: Callable[[], bool]) -> None:
        self._shard = shard
        self._patience = patience
        self._renew = renew
        self._renewed = False
        self._failures = 0
        self._since = patience.now()

    def over(self) -> None:
        """Bytes have come: the budget is whole again."""
        self._failures = 0
        self._since = self._patience.now()

    async def met(self, failure: RequestFailure, offset: int | None = None) -> None:
        """Returns when it is time to try again; raises when there is no use in that.

        Not to be called while the library's error is handled: ours would carry it along, with all that is secret in it.
        """
        self._failures += 1
        if failure.kind is FailureKind.REFUSED and not self._renewed:
            self._renewed = True
            store_counts.renewals += self._renew()
            return
        pause_s = self._patience.pause_s(self._failures)
        late = self._patience.now() + pause_s > self._since + self._patience.budget_s
        if failure.kind is not FailureKind.PASSING or late:
            raise self._given_up(failure, offset)
        store_counts.retries += 1
        await self._patience.sleep(pause_s)

    def _given_up(self, failure: RequestFailure, offset: int | None) -> StorageError:
        reason = failure.reason
        if failure.kind is FailureKind.PASSING:
            reason += f" ({self._failures} tries in {self._patience.now() - self._since:.0f} s)"
        advice = _ADVICE.get(failure.kind)
        if failure.kind is FailureKind.REFUSED:
            advice = _CREDENTIALS_ADVICE.get(self._shard.partition(":")[0], _SIGNED_URL_ADVICE)
        return StorageError(reason, shard=self._shard, offset=offset, stage="read", advice=advice)


REMEMBERED_ANSWERS = 256
MIN_ANSWERS = 32
"""Answers seen before any can be called slow."""
HEDGE_PERCENTILE = 0.9
HEDGE_FACTOR = 2.0
"""A request is in the slow tail when it takes this many times what nine of ten take."""
MIN_HEDGE_DELAY_S = 0.02
REQUESTS_PER_HEDGE = 10
"""Of all requests, asked twice at most: where everything has become slow, more requests would make it worse."""
MAX_SAVED_HEDGES = 16
"""Second requests that quick times leave to slow ones: after an hour without one, not all of them are doubled."""


class LatencyTracker:
    """Of one store. Used by the channel's thread only."""

    def __init__(self) -> None:
        self._answers: deque[float] = deque(maxlen=REMEMBERED_ANSWERS)
        self._unused = 0
        """Requests since the last that was asked twice, so to speak: each second one costs ten."""
        self._since_sorted = self._chunked = 0
        self._slow_s: float | None = None

    def answered(self, seconds: float) -> None:
        """An answer began to come after so long."""
        self._answers.append(seconds)
        self._since_sorted += 1
        if len(self._answers) >= MIN_ANSWERS and (self._slow_s is None or self._since_sorted >= MIN_ANSWERS):
            self._since_sorted = 0
            self._slow_s = max(
                MIN_HEDGE_DELAY_S, HEDGE_FACTOR * sorted(self._answers)[int(HEDGE_PERCENTILE * len(self._answers))]
            )

    def patience_s(self) -> float | None:
        """How long to wait for a new request before it is asked again; None as long as nobody can say."""
        self._unused = min(self._unused + 1, REQUESTS_PER_HEDGE * MAX_SAVED_HEDGES)
        return self._slow_s

    def may_ask_twice(self) -> bool:
        """Whether one more second request is within the share; counts it."""
        if self._unused < REQUESTS_PER_HEDGE:
            return False
        self._unused -= REQUESTS_PER_HEDGE
        return True

    def stalled(self) -> None:
        """A whole answer was too much for the time of a stall: the network may be too slow for any."""
        self._chunked = REMEMBERED_ANSWERS

    def takes_whole(self) -> bool:
        """Whether the next answer is to be taken whole, rather than chunk by chunk."""
        self._chunked = max(0, self._chunked - 1)
        return self._chunked == 0
