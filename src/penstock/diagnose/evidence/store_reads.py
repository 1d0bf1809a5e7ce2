"""How a penstock.Loader reads from object stores, and whether latency or bandwidth limits it.

Two causes resemble each other: readers are busy all the time and workers are starved. The time of a request has two
parts. Until the answer begins, it is latency, which is the same for every request and is hidden by more requests at
once. From then until the last byte, it is bandwidth, which all requests in flight share. The autotuner of the loader
also tries more reads in flight as long as it gains from them. Its recorded changes show what more reads brought, which
times alone do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite

from penstock.core.hops import Hop
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import STARVED_MIN
from penstock.recording.format import HopsLine, StoreRequests

READ_BUSY_MIN = 0.85
"""Share of their time that readers read, from which on reading alone limits them."""
DECODE_STARVED_MIN = 0.1
"""Share of their time that workers wait for bytes, from which on reading is too slow for them."""
STORE_SHARE_MIN = 0.5
"""Share of the loader's bytes that come from stores: with less, the store is not the cause."""
STORE_SHARE_MAX = 1.5
"""Bytes from stores over the bytes of the loader: with more, other loaders of the process read from stores too."""
LATENCY_SHARE_MIN, BANDWIDTH_SHARE_MAX = 0.6, 0.3
"""Share of a request's time until its answer begins: from the one on latency limits, up to the other bandwidth does."""
READERS_MAX = 128
"""Largest number of reads in flight that is advised."""
BUSY_FLOOR = 0.05
"""Least share of the time that another hop is taken to need: keeps a gain finite."""
_CHANGE = re.compile(r"readers (\d+) → (\d+): (.*)")


@dataclass(frozen=True)
class StoreReads:
    """How a loader that waits for reading reads from stores; seconds and bytes are means per request."""

    bytes_s: float
    """Bytes per second that the loader reads, from stores and elsewhere."""
    store_bytes: float
    """Bytes from stores, in all."""
    later_store_bytes: float
    """Bytes from stores in epochs after the first."""
    later_store_share: float
    """Share of the bytes of epochs after the first that came from a store; 0 if there is only one epoch."""
    answer_s: float
    """Seconds of a request until its answer begins."""
    body_s: float
    """Seconds from then until its last byte."""
    request_bytes: float
    in_flight: float
    """Mean number of requests in flight, by Little's law."""
    readers: int
    """Number of reader threads at the end of the run."""
    more_readers_helped: bool | None
    """Whether more reads in flight raised the throughput when the loader tried; None if it did not try."""
    gain: float
    """Gain in samples per second if reading were never waited for: then the workers or the step limit the rate."""

    @property
    def latency_share(self) -> float:
        """Share of a request's time until its answer begins."""
        whole_s = self.answer_s + self.body_s
        return self.answer_s / whole_s if whole_s > 0 else 0.0

    @property
    def bound(self) -> str | None:
        """`latency` or `bandwidth`; None if the evidence supports neither."""
        if self.more_readers_helped is False:  # late answers may also be those of a store at its bandwidth limit
            return None if self.latency_share >= LATENCY_SHARE_MIN else "bandwidth"
        if self.more_readers_helped or self.latency_share >= LATENCY_SHARE_MIN:
            return "latency"
        return "bandwidth" if self.latency_share <= BANDWIDTH_SHARE_MAX else None

    @property
    def needed_readers(self) -> int:
        """Number of reads in flight at which reading is never waited for, by Little's law."""
        return max(self.readers + 1, min(READERS_MAX, ceil(self.readers * (1 + self.gain))))

    @property
    def facts(self) -> tuple[str, ...]:
        """The measurements as text."""
        facts = [
            f"a request brings {self.request_bytes / 1024:,.0f} KiB: {self.answer_s * 1e3:.0f} ms until its answer "
            f"begins, {self.body_s * 1e3:.0f} ms until its last byte",
            f"{self.in_flight:.0f} requests in flight by {self.readers} readers bring {self.bytes_s / 1e6:,.0f} MB/s",
        ]
        if self.more_readers_helped is not None:
            brought = "more" if self.more_readers_helped else "no more"
            facts.append(f"the loader tried more reads in flight: they brought {brought}")
        return tuple(facts)


def store_reads(evidence: Evidence) -> StoreReads | None:
    """Return how the loader reads from stores; None unless the loop waits for a penstock.Loader that waits for a
    store."""
    if evidence.loader.type != "penstock" or evidence.starved_share < STARVED_MIN:
        return None
    intervals, lines = list(_intervals(evidence)), _hops_lines(evidence)
    seconds = sum(interval.seconds for interval in intervals)
    loader_bytes = sum(interval.loader_bytes for interval in intervals)
    store_bytes = sum(interval.store_bytes for interval in intervals)
    answers = sum(interval.answers for interval in intervals)
    if not answers or not STORE_SHARE_MIN * loader_bytes <= store_bytes <= STORE_SHARE_MAX * loader_bytes:
        return None
    read, decode = (_sum_hops(name, [interval.hops[name] for interval in intervals]) for name in ("read", "decode"))
    if read.busy < READ_BUSY_MIN or decode.starved < DECODE_STARVED_MIN:
        return None
    later = [interval for interval in intervals if interval.later_epoch]
    later_store_bytes = sum(interval.store_bytes for interval in later)
    answer_s = sum(interval.answer_s for interval in intervals)
    body_s = sum(interval.body_s for interval in intervals)
    next_limit = min(1 / max(BUSY_FLOOR, decode.busy), 1 / max(BUSY_FLOOR, 1 - evidence.starved_share))
    return StoreReads(
        bytes_s=loader_bytes / seconds,
        store_bytes=store_bytes,
        later_store_bytes=later_store_bytes,
        later_store_share=later_store_bytes / max(1.0, sum(interval.loader_bytes for interval in later)),
        answer_s=answer_s / answers,
        body_s=body_s / answers,
        request_bytes=store_bytes / answers,
        in_flight=(answer_s + body_s) / seconds,
        readers=max(1, lines[-1].readers),
        more_readers_helped=more_readers_helped(change for line in lines for change in line.changes),
        gain=max(0.0, next_limit - 1),
    )


def more_readers_helped(changes: Iterable[str]) -> bool | None:
    """Return the result of the loader's last trial of more readers, from its recorded changes; None without a trial."""
    helped: bool | None = None
    for change in changes:
        found = _CHANGE.match(change)
        if found is None:
            continue
        before, after, reason = int(found[1]), int(found[2]), found[3]
        if after > before and " MB/s after " not in reason:
            helped = True  # a trial has begun; it helped unless a later change reverts it
        elif "more is no help" in reason or "trying fewer" in reason:
            helped = False
    return helped


@dataclass(frozen=True)
class _HopInterval:
    """The difference between two successive lines of hops."""

    seconds: float
    loader_bytes: float
    store_bytes: float
    answers: int
    answer_s: float
    body_s: float
    hops: dict[str, Hop]
    later_epoch: bool
    """Whether it lies in an epoch after the first."""


def _intervals(evidence: Evidence) -> Iterator[_HopInterval]:
    """Yield the intervals between the first and the last step, without those in which the engine was restarted."""
    if not evidence.loop.steps:
        return
    first_s, last_s = evidence.loop.steps[0].at_s, evidence.loop.steps[-1].at_s
    second_epoch_s = min((step.at_s for step in evidence.loop.first_steps if step.epoch > 0), default=None)
    for before, after in pairwise(_hops_lines(evidence)):
        inside = first_s <= before.at_s < after.at_s and before.at_s <= last_s
        later_epoch = second_epoch_s is not None and before.at_s >= second_epoch_s
        interval = _difference(before, after, later_epoch=later_epoch)
        if inside and interval is not None:
            yield interval


def _hops_lines(evidence: Evidence) -> list[HopsLine]:
    return [line for line in evidence.recording.hops if line.loader == evidence.loader.loader]


def _difference(before: HopsLine, after: HopsLine, *, later_epoch: bool) -> _HopInterval | None:
    """Return the interval between two lines; None if a sum decreased, because the engine was restarted."""
    old, new = before.store or StoreRequests(), after.store or StoreRequests()
    hops = {name: _hop(name, after).since(_hop(name, before)) for name in ("read", "decode")}
    interval = _HopInterval(
        seconds=after.at_s - before.at_s,
        loader_bytes=after.bytes_read - before.bytes_read,
        store_bytes=new.bytes_read - old.bytes_read,
        answers=new.answers - old.answers,
        answer_s=new.answer_s - old.answer_s,
        body_s=new.body_s - old.body_s,
        hops=hops,
        later_epoch=later_epoch,
    )
    sums = (interval.loader_bytes, interval.store_bytes, interval.answers, interval.answer_s, interval.body_s)
    smallest = [min(hop.busy_s, hop.starved_s, hop.blocked_s) for hop in hops.values()]
    return interval if all(isfinite(number) and number >= 0 for number in (*sums, *smallest)) else None


def _hop(name: str, line: HopsLine) -> Hop:
    return Hop(name, *line.hops.get(name, (0.0, 0.0, 0.0)))


def _sum_hops(name: str, hops: Sequence[Hop]) -> Hop:
    return Hop(
        name,
        sum(hop.busy_s for hop in hops),
        sum(hop.starved_s for hop in hops),
        sum(hop.blocked_s for hop in hops),
    )
