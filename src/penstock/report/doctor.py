"""`penstock doctor`: its checks on one screen or as tables, and what the claim and the curve of a storage mean.

A sign before each row shows whether to act. `penstock probe` prints its results in the same tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.core.format import format_byte_rate, format_bytes, format_count, format_duration
from penstock.errors import printable
from penstock.plan.doctor.check import Check, CheckStatus
from penstock.probe.storage import IN_FLIGHT
from penstock.probe.storage_curve import StorageBehaviour, StorageCurve, explain_behaviour, measured_behaviour
from penstock.report.text import table
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts

SIGNS = {CheckStatus.GOOD: "✓", CheckStatus.ATTENTION: "!", CheckStatus.BAD: "✗", CheckStatus.UNKNOWN: "–"}

SHUFFLE_CHEAP = 0.8
"""Share of the sequential rate from which on reading single samples in random order costs little."""
SLOW_OPEN_S = 5e-3
"""A slow open: a thread that opens a file per sample delivers at most 200 samples per second at this time per open."""
NEARLY_FULL = 0.02
"""Share of free space below which packing or caching shards is likely to fail."""

_KIND_MEANINGS = {
    StorageKind.NVME: "Flash on the PCIe bus: fast with many reads in flight, at any offset.",
    StorageKind.SSD: "Flash: random offsets cost little; a few reads in flight reach its full rate.",
    StorageKind.HDD: "A moving head: long sequential reads, few in flight; or copy shards to flash.",
    StorageKind.VIRTUAL_DISK: "A hypervisor's disk: its flags do not describe the device below.",
    StorageKind.NETWORK_DISK: "A disk over a network: each read waits a round trip, so keep many in flight.",
    StorageKind.NFS: "A server over the network: shards, not loose files, since each open asks the server.",
    StorageKind.SMB: "A server over the network: shards, not loose files, since each open asks the server.",
    StorageKind.LUSTRE: "A parallel filesystem: fast with large reads, slow with small files.",
    StorageKind.CLUSTER: "A parallel filesystem: fast with large reads, slow with small files.",
    StorageKind.FUSE: "A program serves each read: its cache and its backend decide the speed.",
    StorageKind.OBJECT_STORE: "Each request waits a round trip: read large ranges, and many at once.",
    StorageKind.HOST_SHARE: "A folder of the host: each read and open crosses into the host and back.",
    StorageKind.TMPFS: "Memory: as fast as possible, and its bytes are taken from the training's own memory.",
    StorageKind.RAM: "A disk in memory: as fast as possible, and taken from the training's own memory.",
    StorageKind.OVERLAY: "A container's own layers: keep data on a mounted volume instead.",
    StorageKind.UNKNOWN: "The system does not show what is below: only the measurement counts.",
}

_CACHES_OUTSIDE = (StorageKind.VIRTUAL_DISK, StorageKind.HOST_SHARE, StorageKind.FUSE)
"""Local kinds that, like remote ones, may answer from a cache that this machine cannot empty."""


def check_table(title: str, checks: Iterable[Check]) -> Table:
    """Return a table with one row per check: sign, name, value, meaning."""
    lines = [(SIGNS[check.mark], check.name, check.value, check.meaning) for check in checks]
    return table(title, ("", "what", "found", "which means"), lines)


def check_summary(sections: Sequence[tuple[str, Sequence[Check]]]) -> RenderableType:
    """Return what is wrong in any section, the worst first and with its meaning; then the rest by name and value."""
    checks = [check for _, found in sections for check in found]
    wrong = [check for mark in (CheckStatus.BAD, CheckStatus.ATTENTION) for check in checks if check.mark is mark]
    count = format_count(len(wrong), "thing") if wrong else "nothing"
    parts: list[RenderableType] = [check_table(f"{count} to act on", wrong) if wrong else Text(f"{count} to act on")]
    for title, found in sections:
        parts.append(Text(printable(title), style="bold"))
        for mark, word in ((CheckStatus.GOOD, "good"), (CheckStatus.UNKNOWN, "not known")):
            rest = " · ".join(f"{check.name} {check.value}" for check in found if check.mark is mark)
            if rest:
                parts.append(Text(printable(f"{SIGNS[mark]} {word}: {rest}")))
    return Group(*parts)


# -- rows about a storage ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StorageRow:
    """One row about a storage; `ok` is False if the user should act."""

    name: str
    value: str
    meaning: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class WritableSpace:
    """Whether files can be written under a path, and the space there."""

    writable: bool
    free_bytes: int
    total_bytes: int


def as_checks(rows: Iterable[StorageRow]) -> Iterator[Check]:
    """Yield rows about a storage as checks, for the same table."""
    for row in rows:
        status = CheckStatus.GOOD if row.ok else CheckStatus.ATTENTION
        yield Check(row.name, row.value, row.meaning, status)


def claim_rows(storage: StorageFacts, space: WritableSpace | None) -> Iterator[StorageRow]:
    """Yield what is known without reading a byte; the space is None for an object store, which does not report it."""
    same_name = storage.filesystem in ("", storage.kind)
    value = storage.kind if same_name else f"{storage.kind} ({storage.filesystem})"
    yield StorageRow("kind", value, _KIND_MEANINGS[storage.kind])
    yield StorageRow("mount", " → ".join(storage.chain), "From the mount down to the devices that hold the bytes.")
    if space is None:
        return
    if storage.read_only or not space.writable:
        yield StorageRow("writable", "no", "Reading works; index files go to your cache folder instead.")
        return
    yield StorageRow("writable", "yes", "Index files can lie beside the shards.")
    free = f"{format_bytes(space.free_bytes)} of {format_bytes(space.total_bytes)}"
    if space.free_bytes < NEARLY_FULL * space.total_bytes:
        yield StorageRow("free space", free, "Nearly full: packing or caching shards here will fail.", ok=False)
    else:
        yield StorageRow("free space", free, "A packed copy of a dataset, or a shard cache, must fit into this.")


def curve_rows(storage: StorageFacts, curve: StorageCurve, age_s: float) -> Iterator[StorageRow]:
    """Yield what the measurement shows; `age_s` is the time since it was made."""
    yield _sequential(curve)
    yield _random(storage, curve)
    yield _in_flight(curve)
    yield _open_stat(storage, curve)
    yield _cold(storage, curve)
    yield StorageRow("acts like", measured_behaviour(storage, curve), explain_behaviour(storage, curve))
    read = f"{format_bytes(curve.probe_bytes)} in {format_duration(curve.seconds)}"
    if age_s >= 1:
        yield StorageRow("measured", f"{format_duration(age_s)} ago", f"On {read}; --refresh measures again.")
    else:
        yield StorageRow("measured", "now", f"On {read}.")


def _sequential(curve: StorageCurve) -> StorageRow:
    best = curve.best_sequential()
    rate = best.sequential_mb_per_s * 1e6
    samples = f"{rate / curve.sample_bytes:,.0f} samples/s of {format_bytes(curve.sample_bytes)}"
    value = f"{format_byte_rate(rate)} at {best.in_flight} in flight"
    return StorageRow("sequential", value, f"Shards read in large blocks deliver at most {samples}.")


def _random(storage: StorageFacts, curve: StorageCurve) -> StorageRow:
    best, share = curve.best_random(), curve.random_share()
    size = format_bytes(curve.sample_bytes)
    value = f"{best.random_reads_per_s:,.0f} reads/s of {size} at {best.in_flight} in flight"
    seeks = measured_behaviour(storage, curve) is StorageBehaviour.SPINNING
    reach = f"Random reads of one sample reach {share:.0%} of sequential speed: "
    if seeks:
        meaning = reach + "read whole blocks and shuffle those, or copy the shards to a faster disk."
    elif share >= 1:
        meaning = "Random reads of one sample are as fast as sequential ones: shuffling costs nothing here."
    elif share >= SHUFFLE_CHEAP:
        meaning = reach + "shuffling costs little here."
    else:
        meaning = reach + "reads this small cost more than their bytes, so read whole blocks and shuffle those."
    return StorageRow("random", value, meaning, ok=not seeks)


def _in_flight(curve: StorageCurve) -> StorageRow:
    needed, deepest = curve.in_flight_needed(), curve.points[-1].in_flight
    if needed < deepest:
        meaning = f"More at once, up to {deepest}, gain under 5%. Choose decode workers by the cores, not by this."
    elif needed < IN_FLIGHT[-1]:
        meaning = f"More than {deepest} could not be measured with the time and the files available."
    else:
        meaning = "The most that was measured: it still gained from more reads at once."
    return StorageRow("in flight to use", str(needed), meaning)


def _open_stat(storage: StorageFacts, curve: StorageCurve) -> StorageRow:
    median_s, p99_s = curve.open_stat.median_us / 1e6, curve.open_stat.p99_us / 1e6
    value = f"{format_duration(median_s)} (p99 {format_duration(p99_s)})"
    if storage.kind is StorageKind.OBJECT_STORE:
        meaning = f"One after the other, {1 / median_s:,.0f} requests/s: the curve shows what many in flight bring."
        return StorageRow("a request", value, meaning)
    opens = f"One thread opens at most {1 / median_s:,.0f} files/s"
    if median_s >= SLOW_OPEN_S:
        return StorageRow("open + stat", value, f"{opens}: use shards, loose files are too slow for a GPU.", ok=False)
    cached = "" if storage.kind.remote else ", with their names in the cache"
    return StorageRow("open + stat", value, f"{opens}{cached}.")


def _cold(storage: StorageFacts, curve: StorageCurve) -> StorageRow:
    if curve.cold:
        meaning = "Reads bypassed this machine's page cache, as those of the first epoch will."
        if storage.kind.remote or storage.kind in _CACHES_OUTSIDE:
            meaning += " A cache outside it (server, host) may still have helped."
        return StorageRow("cold", f"yes ({curve.method})", meaning)
    if storage.kind.in_memory:
        return StorageRow("cold", "no", "It is memory itself: there is no slower device below.")
    meaning = "The page cache could not be bypassed: these are memory's rates, the first epoch will be slower."
    return StorageRow("cold", "no (warm)", meaning, ok=False)


def curve_table(curve: StorageCurve) -> Table:
    """Return the measured curve: the rates at each number of reads in flight."""
    columns = ("in flight", "sequential MB/s", "random reads/s", "random MB/s")
    rows = [
        (
            str(point.in_flight),
            f"{point.sequential_mb_per_s:,.0f}",
            f"{point.random_reads_per_s:,.0f}",
            f"{curve.random_mb_per_s(point):,.0f}",
        )
        for point in curve.points
    ]
    return table("measured curve", columns, rows, right=columns)
