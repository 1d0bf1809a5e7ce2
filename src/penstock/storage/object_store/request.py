"""Requests to a store that survive failures.

`with_retries` repeats a small request until it succeeds. `fetch_range` reads one range of an object: it resumes where
an answer broke off, and sends a second request where the first answer is slow (hedging).
"""

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
"""Smallest chunk of an answer: a stall is recognised by the time of one chunk, and each chunk wakes the I/O thread."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """The identity of an object's content; another version differs in at least one field."""

    size: int
    etag: str | None
    modified_ns: int
    """Modification time where the store has no ETags; else 0."""

    @classmethod
    def of(cls, meta: Any) -> ObjectVersion:
        """Return the version that the metadata of a store's answer describe."""
        etag: str | None = meta["e_tag"]
        return cls(meta["size"], etag, 0 if etag else int(meta["last_modified"].timestamp()) * 10**9)

    def condition(self) -> dict[str, str]:
        """Return the condition for the store to check. Weak ETags never match there; only the client compares them."""
        return {"if_match": self.etag} if self.etag and not self.etag.startswith("W/") else {}


async def with_retries(url: RemoteUrl, policy: RetryPolicy, send: Callable[[Any], Awaitable[Answer]]) -> Answer:
    """Repeat a small request until it succeeds or the policy's time is over.

    Each answer must come as a whole within `policy.stall_s`.
    """
    store = get_store(url)
    state = RetryState(str(url), policy, lambda: renew_store(url, store))
    while True:
        try:
            store_counts.requests += 1
            return await asyncio.wait_for(send(store), policy.stall_s)
        except Exception as error:
            failure = classify(error)
        await state.wait_or_raise(failure)
        store = get_store(url)


async def fetch_range(
    url: RemoteUrl, version: ObjectVersion, offset: int, into: memoryview, policy: RetryPolicy
) -> None:
    """Fill the memory with the object's bytes from `offset` on, all of them from that version.

    The first answer is taken as a whole, which saves a third of the work; it must come within `policy.stall_s`. After a
    failure, answers are taken chunk by chunk, each chunk within that time, and the bytes that came are kept. After a
    stall, the next reads of this store start chunk by chunk as well: on a slow network half of all bytes would be
    lost otherwise.
    """
    done, store, latencies = 0, get_store(url), _latency_trackers[url.scheme, url.bucket]
    state = RetryState(str(url), policy, lambda: renew_store(url, store))
    read_answer: Callable[[Any], Any] = _WholeAnswer if latencies.takes_whole_answers() else _by_chunks
    while done < len(into):
        try:
            begin = policy.now()
            answer = await _request_range(url, store, version, (offset + done, offset + len(into)), policy)
            chunks = read_answer(answer)
            begin = _count_answer(begin, policy)
            while (chunk := await next_chunk(chunks, policy)) is not None:
                if len(chunk) > len(into) - done:
                    raise InconsistentAnswer("the store sent more than was requested")
                into[done : done + len(chunk)] = memoryview(chunk)
                done += len(chunk)
                store_counts.bytes_read += len(chunk)
                state.progressed()
            store_counts.body_s += policy.now() - begin
            if done < len(into):
                raise InconsistentAnswer("the answer ended early")
            return
        except Exception as error:
            failure = classify(error)
            if read_answer is _WholeAnswer and isinstance(error, StalledTransfer):
                latencies.record_stall()
        await state.wait_or_raise(failure, offset + done)
        store, read_answer = get_store(url), _by_chunks


def _count_answer(begin: float, policy: RetryPolicy) -> float:
    """Count the start of an answer to the request sent at `begin`; return the time of that start."""
    now = policy.now()
    store_counts.answers += 1
    store_counts.answer_s += now - begin
    return now


class _WholeAnswer:
    """An iterator over an answer that yields it as one chunk."""

    def __init__(self, answer: Any) -> None:
        self._remaining = [answer]

    def __anext__(self) -> Any:
        if not self._remaining:
            raise StopAsyncIteration
        return self._remaining.pop().bytes_async()


def _by_chunks(answer: Any) -> Any:
    return answer.stream(min_chunk_size=CHUNK_BYTES)


async def _request_range(
    url: RemoteUrl, store: Any, version: ObjectVersion, byte_range: tuple[int, int], policy: RetryPolicy
) -> Any:
    """Request a range, and return the answer once its version and range have been checked."""
    options = {"range": byte_range, **version.condition()}

    def send() -> asyncio.Future[Any]:
        store_counts.requests += 1
        answer: asyncio.Future[Any] = import_obstore().get_async(store, path_in_store(url), options=options)
        return answer

    result = await hedged_request(send, _latency_trackers[url.scheme, url.bucket], policy)
    if ObjectVersion.of(result.meta) != version:
        raise OverwrittenObject
    if tuple(result.range) != byte_range:
        raise InconsistentAnswer("the store sent another range than was requested")
    return result


async def next_chunk(chunks: Any, policy: RetryPolicy) -> Any:
    """Return the next chunk of an answer, or None at its end."""
    try:
        return await asyncio.wait_for(chunks.__anext__(), policy.stall_s)  # a future; anext() would wrap it in a task
    except StopAsyncIteration:
        return None
    except TimeoutError:
        store_counts.stalls += 1
        raise StalledTransfer(f"bytes came too slowly, given up after {policy.stall_s:g} s") from None


async def hedged_request(
    send: Callable[[], asyncio.Future[Answer]], latencies: LatencyTracker, policy: RetryPolicy
) -> Answer:
    """Return the answer to a request; if that is slow, send a second request and return the first answer of the two.

    Together they have `policy.stall_s`, counted from the first request.
    """
    begin = policy.now()
    requests = [send()]
    try:
        delay_s = latencies.hedge_delay_s()
        if delay_s is not None and delay_s < policy.stall_s:
            done, _ = await asyncio.wait(requests, timeout=delay_s)
            if not done and latencies.may_hedge():
                store_counts.hedges += 1
                requests.append(send())
        answer = await _first_success(requests, lambda: begin + policy.stall_s - policy.now())
    finally:
        for request in requests:
            request.add_done_callback(_retrieve_exception)
            request.cancel()
    latencies.record(policy.now() - begin)
    return answer


async def _first_success(requests: list[asyncio.Future[Answer]], remaining_s: Callable[[], float]) -> Answer:
    """Return the first good answer; raise the last failure only if all requests have failed."""
    waiting: set[asyncio.Future[Answer]] = set(requests)
    failure: BaseException | None = None
    while waiting:
        timeout_s = max(0.0, remaining_s())
        done, waiting = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimeoutError
        for request in done:
            failure = request.exception()
            if failure is None:
                store_counts.hedges_won += request is not requests[0]
                return request.result()
    assert failure is not None
    raise failure


def _retrieve_exception(request: asyncio.Future[Any]) -> None:
    """Mark the exception of an abandoned request as seen; the loop would print it otherwise, address included."""
    if not request.cancelled():
        request.exception()


REMEMBERED_ANSWERS = 256
"""Latencies of which the percentile is taken."""
MIN_ANSWERS = 32
"""Answers that are needed before a request can be called slow."""
HEDGE_PERCENTILE = 0.9
HEDGE_FACTOR = 2.0
"""A request is slow when it takes this many times the percentile of the latencies."""
MIN_HEDGE_DELAY_S = 0.02
"""Seconds that every request gets before a second one may be sent."""
REQUESTS_PER_HEDGE = 10
"""At most one request in this many is sent twice: if all have become slow, more requests would make it worse."""
MAX_SAVED_HEDGES = 16
"""Unused second requests that are kept for later, so that not all are doubled after an hour without any."""


class LatencyTracker:
    """The latencies of one store, and from them, when to send a second request. Used by the I/O thread only."""

    def __init__(self) -> None:
        self._latencies_s: deque[float] = deque(maxlen=REMEMBERED_ANSWERS)
        self._hedge_credit = 0
        """Requests counted towards the next second request; each second request costs REQUESTS_PER_HEDGE."""
        self._since_sorted = 0
        """Answers recorded since the delay was last computed."""
        self._reads_by_chunks = 0
        """Reads that are still to start chunk by chunk after a stall."""
        self._hedge_delay_s: float | None = None

    def record(self, seconds: float) -> None:
        """Add the time from a request to the start of its answer."""
        self._latencies_s.append(seconds)
        self._since_sorted += 1
        due = self._hedge_delay_s is None or self._since_sorted >= MIN_ANSWERS
        if len(self._latencies_s) >= MIN_ANSWERS and due:
            self._since_sorted = 0
            percentile_s = sorted(self._latencies_s)[int(HEDGE_PERCENTILE * len(self._latencies_s))]
            self._hedge_delay_s = max(MIN_HEDGE_DELAY_S, HEDGE_FACTOR * percentile_s)

    def hedge_delay_s(self) -> float | None:
        """Count a request; return the seconds after which it counts as slow, None while too few answers are known."""
        self._hedge_credit = min(self._hedge_credit + 1, REQUESTS_PER_HEDGE * MAX_SAVED_HEDGES)
        return self._hedge_delay_s

    def may_hedge(self) -> bool:
        """Return whether a second request may be sent now, and count it."""
        if self._hedge_credit < REQUESTS_PER_HEDGE:
            return False
        self._hedge_credit -= REQUESTS_PER_HEDGE
        return True

    def record_stall(self) -> None:
        """Let the next reads start chunk by chunk: the network may be too slow for whole answers."""
        self._reads_by_chunks = REMEMBERED_ANSWERS

    def takes_whole_answers(self) -> bool:
        """Count a read; return whether it starts with a whole answer rather than chunk by chunk."""
        self._reads_by_chunks = max(0, self._reads_by_chunks - 1)
        return self._reads_by_chunks == 0


_latency_trackers: defaultdict[tuple[str, str], LatencyTracker] = defaultdict(LatencyTracker)
