"""One range of an object, however often it takes: resumed where it broke, asked twice where it is slow."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.storage.object_store.client import get_store, import_obstore, path_in_store, renew_store
from penstock.storage.object_store.io_thread import store_counts
from penstock.storage.object_store.retry import (
    InconsistentAnswer,
    OverwrittenObject,
    RetryPolicy,
    RetryState,
    StalledTransfer,
    classify,
)
from penstock.storage.object_store.url import RemoteUrl

CHUNK_BYTES = 256 << 10
"""Bytes are taken in at least this much at a time: a stall is judged by a chunk, and each costs a turn of ours."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """Which object this is: another look means another object."""

    size: int
    etag: str | None
    modified_ns: int
    """Where the store has no ETags; else 0."""

    @classmethod
    def of(cls, meta: Any) -> ObjectVersion:
        """As an answer of the store has it."""
        etag: str | None = meta["e_tag"]
        return cls(meta["size"], etag, 0 if etag else int(meta["last_modified"].timestamp()) * 10**9)

    def condition(self) -> dict[str, str]:
        """What the store is to make sure of; a weak ETag never matches there, so only we compare it."""
        return {"if_match": self.etag} if self.etag and not self.etag.startswith("W/") else {}


async def with_retries(url: RemoteUrl, patience: RetryPolicy, ask: Callable[[Any], Awaitable[Answer]]) -> Answer:
    """Ask the store for something small, until it answers or patience ends.

    The answer must come as a whole within the time of a stall.
    """
    store = get_store(url)
    trouble = RetryState(str(url), patience, lambda: renew_store(url, store))
    while True:
        try:
            store_counts.requests += 1
            return await asyncio.wait_for(ask(store), patience.stall_s)
        except Exception as error:
            failure = classify(error)
        await trouble.wait_or_raise(failure)
        store = get_store(url)


async def fetch_range(
    url: RemoteUrl, version: ObjectVersion, offset: int, into: memoryview, patience: RetryPolicy
) -> None:
    """Fill the memory from that offset on, all of it from that version.

    The first answer is taken whole, which saves a third of the work; it must come within the time of a stall. After
    a failure, answers are taken chunk by chunk, each of them in that time, and what has come is kept; so are, after a
    stall, those to the next reads: where the network is slow, half of all bytes would be thrown away.
    """
    done, store, pace = 0, get_store(url), _latency_trackers[url.scheme, url.bucket]
    trouble = RetryState(str(url), patience, lambda: renew_store(url, store))
    take: Callable[[Any], Any] = _WholeAnswer if pace.takes_whole_answers() else _by_chunks
    while done < len(into):
        try:
            begin = patience.now()
            chunks = take(await _request_range(url, store, version, (offset + done, offset + len(into)), patience))
            begin = _count_answer(begin, patience)
            while (chunk := await next_chunk(chunks, patience)) is not None:
                if len(chunk) > len(into) - done:
                    raise InconsistentAnswer("the store sent more than was asked for")
                into[done : done + len(chunk)] = memoryview(chunk)
                done += len(chunk)
                store_counts.bytes_read += len(chunk)
                trouble.progressed()
            store_counts.body_s += patience.now() - begin
            if done < len(into):
                raise InconsistentAnswer("the answer ended early")
            return
        except Exception as error:
            failure = classify(error)
            if take is _WholeAnswer and isinstance(error, StalledTransfer):
                pace.record_stall()
        await trouble.wait_or_raise(failure, offset + done)
        store, take = get_store(url), _by_chunks


def _count_answer(begin: float, patience: RetryPolicy) -> float:
    """An answer to what was asked then begins to come: it is counted. When that is."""
    now = patience.now()
    store_counts.answers += 1
    store_counts.answer_s += now - begin
    return now


class _WholeAnswer:
    """An answer as one chunk."""

    def __init__(self, answer: Any) -> None:
        self._left = [answer]

    def __anext__(self) -> Any:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop().bytes_async()


def _by_chunks(answer: Any) -> Any:
    return answer.stream(min_chunk_size=CHUNK_BYTES)


async def _request_range(
    url: RemoteUrl, store: Any, version: ObjectVersion, wanted: tuple[int, int], patience: RetryPolicy
) -> Any:
    options = {"range": wanted, **version.condition()}

    def ask() -> asyncio.Future[Any]:
        store_counts.requests += 1
        answer: asyncio.Future[Any] = import_obstore().get_async(store, path_in_store(url), options=options)
        return answer

    result = await hedged_request(ask, _latency_trackers[url.scheme, url.bucket], patience)
    if ObjectVersion.of(result.meta) != version:
        raise OverwrittenObject
    if tuple(result.range) != wanted:
        raise InconsistentAnswer("the store sent another range than was asked for")
    return result


async def next_chunk(chunks: Any, patience: RetryPolicy) -> Any:
    """Of an answer that comes in several; None at the end."""
    try:
        return await asyncio.wait_for(chunks.__anext__(), patience.stall_s)  # a future: anext() would make a task of it
    except StopAsyncIteration:
        return None
    except TimeoutError:
        store_counts.stalls += 1
        raise StalledTransfer(f"bytes came too slowly, given up after {patience.stall_s:g} s") from None


async def hedged_request(
    ask: Callable[[], asyncio.Future[Answer]], pace: LatencyTracker, patience: RetryPolicy
) -> Answer:
    """The answer to a request; where it takes much longer than others do, that to a second one, if it comes first.

    Both have the time of one stall, from when the first was asked.
    """
    begin = patience.now()
    asked = [ask()]
    try:
        slow_s = pace.hedge_delay_s()
        if slow_s is not None and slow_s < patience.stall_s:
            done, _ = await asyncio.wait(asked, timeout=slow_s)
            if not done and pace.may_hedge():
                store_counts.hedges += 1
                asked.append(ask())
        answer = await _first_success(asked, lambda: begin + patience.stall_s - patience.now())
    finally:
        for request in asked:
            request.add_done_callback(_retrieve_exception)
            request.cancel()
    pace.record(patience.now() - begin)
    return answer


async def _first_success(asked: list[asyncio.Future[Answer]], left_s: Callable[[], float]) -> Answer:
    """The first good answer; the failure only if all have failed."""
    waiting: set[asyncio.Future[Answer]] = set(asked)
    failed: BaseException | None = None
    while waiting:
        timeout_s = max(0.0, left_s())
        done, waiting = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimeoutError
        for request in done:
            failed = request.exception()
            if failed is None:
                store_counts.hedges_won += request is not asked[0]
                return request.result()
    assert failed is not None
    raise failed


def _retrieve_exception(request: asyncio.Future[Any]) -> None:
    """Take note of what nobody waits for any more: else the loop would print it, with the address in it."""
    if not request.cancelled():
        request.exception()


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

    def record(self, seconds: float) -> None:
        """An answer began to come after so long."""
        self._answers.append(seconds)
        self._since_sorted += 1
        if len(self._answers) >= MIN_ANSWERS and (self._slow_s is None or self._since_sorted >= MIN_ANSWERS):
            self._since_sorted = 0
            self._slow_s = max(
                MIN_HEDGE_DELAY_S, HEDGE_FACTOR * sorted(self._answers)[int(HEDGE_PERCENTILE * len(self._answers))]
            )

    def hedge_delay_s(self) -> float | None:
        """How long to wait for a new request before it is asked again; None as long as nobody can say."""
        self._unused = min(self._unused + 1, REQUESTS_PER_HEDGE * MAX_SAVED_HEDGES)
        return self._slow_s

    def may_hedge(self) -> bool:
        """Whether one more second request is within the share; counts it."""
        if self._unused < REQUESTS_PER_HEDGE:
            return False
        self._unused -= REQUESTS_PER_HEDGE
        return True

    def record_stall(self) -> None:
        """A whole answer was too much for the time of a stall: the network may be too slow for any."""
        self._chunked = REMEMBERED_ANSWERS

    def takes_whole_answers(self) -> bool:
        """Whether the next answer is to be taken whole, rather than chunk by chunk."""
        self._chunked = max(0, self._chunked - 1)
        return self._chunked == 0


_latency_trackers: defaultdict[tuple[str, str], LatencyTracker] = defaultdict(LatencyTracker)
