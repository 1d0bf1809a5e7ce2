"""What the rules about storage have in common for a penstock.Loader over object stores.

Two mechanisms look alike there, too (readers are busy all the time, workers starve). A request takes its time in two
parts: until the answer begins to come, which is latency, the same for all and hidden by asking for more at once; and
from then until its last byte, which is bandwidth, shared by all that are in flight. The loader itself tries more reads
in flight while it gains from them, and its changes say what came of that: the contrast that times alone do not show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite

from penstock.core.hops import Hop
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.worker_cpu import BEHIND
from penstock.recording.format import HopsLine, StoreRequests

BUSY = 0.85
"""Share of their time that readers read, beyond which nothing but reading holds them up."""
STARVED = 0.1
"""Share of their time that workers wait for bytes, beyond which reading is too slow for them."""
MOSTLY = 0.5
"""Of the loader's bytes, from a store: with fewer the store is not the matter."""
OTHERS = 1.5
"""Times the loader's bytes: with more from stores, somebody else in the process reads there, too."""
LATENCY, BANDWIDTH = 0.6, 0.3
"""Share of a request's time until its answer begins: above the one it is latency, below the other bandwidth."""
MOST_READERS = 128
_CHANGE = re.compile(r"readers (\d+) → (\d+): (.*)")


@dataclass(frozen=True)
class StoreReads:
    """How a loader that waits for reading reads from stores."""

    bytes_s: float
    """All that it reads."""
    store_bytes: float
    """From stores, over all looks."""
    again_bytes: float
    """Of these, in later passes than the first."""
    again: float
    """Share of the bytes of later passes that came from a store; 0 where there was no later pass."""
    answer_s: float
    """Of a request, until the answer begins."""
    body_s: float
    """From then on."""
    request_bytes: float
    in_flight: float
    """Requests, on average, by Little's law."""
    readers: int
    """At last."""
    more_helped: bool | None
    """Whether more reads in flight brought more when the loader tried; None where it did not try."""
    room: float
    """More samples per second if nobody ever waited for reading: then workers or the step set the pace."""

    @property
    def latency(self) -> float:
        """Share of a request's time until its answer begins."""
        whole_s = self.answer_s + self.body_s
        return self.answer_s / whole_s if whole_s > 0 else 0.0

    @property
    def bound(self) -> str | None:
        """`latency` or `bandwidth`; None where what was seen speaks for neither."""
        if self.more_helped is False:  # answers that come late may be those of a store that is full
            return None if self.latency >= LATENCY else "bandwidth"
        if self.more_helped or self.latency >= LATENCY:
            return "latency"
        return "bandwidth" if self.latency <= BANDWIDTH else None

    @property
    def needed_readers(self) -> int:
        """Reads in flight so that nobody would wait, by Little's law."""
        return max(self.readers + 1, min(MOST_READERS, ceil(self.readers * (1 + self.room))))

    @property
    def words(self) -> tuple[str, ...]:
        """What was seen, for people."""
        facts = [
            f"a request brings {self.request_bytes / 1024:,.0f} KiB: {self.answer_s * 1e3:.0f} ms until its answer "
            f"begins, {self.body_s * 1e3:.0f} ms until its last byte",
            f"{self.in_flight:.0f} requests in flight by {self.readers} readers bring {self.bytes_s / 1e6:,.0f} MB/s",
        ]
        if self.more_helped is not None:
            facts.append(f"the loader tried more reads in flight: they brought {'' if self.more_helped else 'no '}more")
        return tuple(facts)


def store_reads(evidence: Evidence) -> StoreReads | None:
    """None unless the loop waits for a penstock.Loader that waits for a store."""
    if evidence.loader.type != "penstock" or evidence.starved_share < BEHIND:
        return None
    looks = list(_looks(evidence))
    seconds = sum(look.seconds for look in looks)
    own, store = sum(look.own_bytes for look in looks), sum(look.store_bytes for look in looks)
    answers = sum(look.answers for look in looks)
    if not answers or not MOSTLY * own <= store <= OTHERS * own:
        return None
    read, decode = (_sum(name, [look.hops[name] for look in looks]) for name in ("read", "decode"))
    if read.busy < BUSY or decode.starved < STARVED:
        return None
    later = [look for look in looks if look.later]
    again_bytes = sum(look.store_bytes for look in later)
    answer_s, body_s = (sum(getattr(look, name) for look in looks) for name in ("answer_s", "body_s"))
    return StoreReads(
        bytes_s=own / seconds,
        store_bytes=store,
        again_bytes=again_bytes,
        again=again_bytes / max(1.0, sum(look.own_bytes for look in later)),
        answer_s=answer_s / answers,
        body_s=body_s / answers,
        request_bytes=store / answers,
        in_flight=(answer_s + body_s) / seconds,
        readers=max(1, _lines(evidence)[-1].readers),
        more_helped=more_helped(change for line in _lines(evidence) for change in line.changes),
        room=max(0.0, min(1 / max(0.05, decode.busy), 1 / max(0.05, 1 - evidence.starved_share)) - 1),
    )


def more_helped(changes: Iterable[str]) -> bool | None:
    """What came of the loader's last trial of more reads in flight, in its own words; None where it made none."""
    helped: bool | None = None
    for change in changes:
        found = _CHANGE.match(change)
        if found is None:
            continue
        judged = " MB/s after " in found[3]
        if int(found[2]) > int(found[1]) and not judged:
            helped = True  # until it says otherwise
        elif "more is no help" in found[3] or "trying fewer" in found[3]:
            helped = False
    return helped


@dataclass(frozen=True)
class _HopInterval:
    """What happened between two lines of hops."""

    seconds: float
    own_bytes: float
    store_bytes: float
    answers: int
    answer_s: float
    body_s: float
    hops: dict[str, Hop]
    later: bool
    """In a pass after the first."""


def _looks(evidence: Evidence) -> Iterator[_HopInterval]:
    """Between the first step and the last; sums that went back (the engine was started anew) are left out."""
    if not evidence.loop.steps:
        return
    first_s, last_s = evidence.loop.steps[0].at_s, evidence.loop.steps[-1].at_s
    second_pass_s = min((step.at_s for step in evidence.loop.first_steps if step.epoch > 0), default=None)
    for before, now in pairwise(_lines(evidence)):
        inside = first_s <= before.at_s < now.at_s and before.at_s <= last_s
        seen = _between(before, now, later=second_pass_s is not None and before.at_s >= second_pass_s)
        if inside and seen is not None:
            yield seen


def _lines(evidence: Evidence) -> list[HopsLine]:
    return [line for line in evidence.recording.hops if line.loader == evidence.loader.loader]


def _between(before: HopsLine, now: HopsLine, *, later: bool) -> _HopInterval | None:
    old, new = before.store or StoreRequests(), now.store or StoreRequests()
    hops = {name: _hop(name, now).since(_hop(name, before)) for name in ("read", "decode")}
    look = _HopInterval(
        seconds=now.at_s - before.at_s,
        own_bytes=now.bytes_read - before.bytes_read,
        store_bytes=new.bytes_read - old.bytes_read,
        answers=new.answers - old.answers,
        answer_s=new.answer_s - old.answer_s,
        body_s=new.body_s - old.body_s,
        hops=hops,
        later=later,
    )
    numbers = (look.own_bytes, look.store_bytes, look.answers, look.answer_s, look.body_s, *map(_least, hops.values()))
    return look if all(isfinite(number) and number >= 0 for number in numbers) else None


def _least(hop: Hop) -> float:
    return min(hop.busy_s, hop.starved_s, hop.blocked_s)


def _hop(name: str, line: HopsLine) -> Hop:
    return Hop(name, *line.hops.get(name, (0.0, 0.0, 0.0)))


def _sum(name: str, hops: list[Hop]) -> Hop:
    return Hop(
        name,
        sum(hop.busy_s for hop in hops),
        sum(hop.starved_s for hop in hops),
        sum(hop.blocked_s for hop in hops),
    )
