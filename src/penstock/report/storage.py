"""What a storage's claim and curve mean for training: one row, one value, one true sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core.format import format_byte_rate, format_bytes, format_duration
from penstock.probe.storage import IN_FLIGHT
from penstock.probe.storage_curve import StorageBehaviour, StorageCurve, explain_behaviour, measured_behaviour
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts

SHUFFLE_CHEAP = 0.8
SLOW_OPEN_S = 5e-3
NEARLY_FULL = 0.02

_KIND_MEANS = {
    StorageKind.NVME: "Flash on the PCIe bus: made for many reads in flight, at any place.",
    StorageKind.SSD: "Flash: random places cost little; a few reads in flight fill it.",
    StorageKind.HDD: "A head that moves: long reads in order, few in flight; or stage shards on flash.",
    StorageKind.VIRTUAL_DISK: "A hypervisor's disk: its flags say nothing of what is below.",
    StorageKind.NETWORK_DISK: "A disk over a network: each read waits a round trip, so keep many in flight.",
    StorageKind.NFS: "A server over the network: shards, not loose files, since each open asks the server.",
    StorageKind.SMB: "A server over the network: shards, not loose files, since each open asks the server.",
    StorageKind.LUSTRE: "A parallel filesystem: large reads are its strength, small files its weakness.",
    StorageKind.CLUSTER: "A parallel filesystem: large reads are its strength, small files its weakness.",
    StorageKind.FUSE: "A program serves each read: its cache and its backend decide the speed.",
    StorageKind.OBJECT_STORE: "Each request waits a round trip: read large ranges, and many at once.",
    StorageKind.HOST_SHARE: "A folder of the host: each read and open crosses into the host and back.",
    StorageKind.TMPFS: "Memory: as fast as it gets, and its bytes are taken from the training's own memory.",
    StorageKind.RAM: "A disk in memory: as fast as it gets, and taken from the training's own memory.",
    StorageKind.OVERLAY: "A container's own layers: keep data on a mounted volume instead.",
    StorageKind.UNKNOWN: "The system does not tell what is below: only the measurement counts.",
}

_CACHES_BEYOND = (StorageKind.VIRTUAL_DISK, StorageKind.HOST_SHARE, StorageKind.FUSE)
"""Kinds that, like remote ones, may be answered from a cache that this machine cannot empty."""


@dataclass(frozen=True, slots=True)
class StorageRow:
    """One line of the report; `ok` is False where there is something to act on."""

    name: str
    value: str
    meaning: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class WritableSpace:
    """What can be written under a path."""

    writable: bool
    free_bytes: int
    total_bytes: int


def claim_rows(storage: StorageFacts, room: WritableSpace | None) -> Iterator[StorageRow]:
    """What is known without reading a byte; a store does not tell how much room it has."""
    named = storage.filesystem in ("", storage.kind)
    yield StorageRow(
        "kind", storage.kind if named else f"{storage.kind} ({storage.filesystem})", _KIND_MEANS[storage.kind]
    )
    yield StorageRow("mount", " → ".join(storage.chain), "From the mount down to what holds the bytes.")
    if room is None:
        return
    if storage.read_only or not room.writable:
        yield StorageRow("writable", "no", "Reading works; index files go to your cache folder instead.")
        return
    yield StorageRow("writable", "yes", "Index files can lie beside the shards.")
    free = f"{format_bytes(room.free_bytes)} of {format_bytes(room.total_bytes)}"
    if room.free_bytes < NEARLY_FULL * room.total_bytes:
        yield StorageRow("free space", free, "Nearly full: packing or staging shards here will fail.", ok=False)
    else:
        yield StorageRow("free space", free, "A packed copy of a data set, or a shard cache, must fit into this.")


def curve_rows(storage: StorageFacts, curve: StorageCurve, age_s: float) -> Iterator[StorageRow]:
    """What the measurement says."""
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
    feeds = f"{rate / curve.sample_bytes:,.0f} samples/s of {format_bytes(curve.sample_bytes)}"
    value = f"{format_byte_rate(rate)} at {best.in_flight} in flight"
    return StorageRow("sequential", value, f"Shards read in large blocks feed at most {feeds}.")


def _random(storage: StorageFacts, curve: StorageCurve) -> StorageRow:
    best, share = curve.best_random(), curve.random_share()
    size = format_bytes(curve.sample_bytes)
    value = f"{best.random_reads_per_s:,.0f} reads/s of {size} at {best.in_flight} in flight"
    seeks = measured_behaviour(storage, curve) is StorageBehaviour.SPINNING
    reach = f"Random reads of one sample reach {share:.0%} of sequential speed: "
    if seeks:
        meaning = reach + "read whole blocks and shuffle those, or stage the shards on a faster disk."
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
        meaning = f"More at once, up to {deepest}, gain under 5%. Decode workers are for the cores to decide."
    elif needed < IN_FLIGHT[-1]:
        meaning = f"More than {deepest} could not be tried with the time and the files at hand."
    else:
        meaning = "The most that was tried: it still gained from more reads at once."
    return StorageRow("in flight to use", str(needed), meaning)


def _open_stat(storage: StorageFacts, curve: StorageCurve) -> StorageRow:
    median_s, p99_s = curve.open_stat.median_us / 1e6, curve.open_stat.p99_us / 1e6
    value = f"{format_duration(median_s)} (p99 {format_duration(p99_s)})"
    if storage.kind is StorageKind.OBJECT_STORE:
        waits = f"Asked one after the other, {1 / median_s:,.0f} requests/s: what many in flight bring is in the curve."
        return StorageRow("a request", value, waits)
    opens = f"One thread opens at most {1 / median_s:,.0f} files/s"
    if median_s >= SLOW_OPEN_S:
        return StorageRow("open + stat", value, f"{opens}: use shards, loose files will starve a GPU.", ok=False)
    known = "" if storage.kind.remote else ", their names being cached already"
    return StorageRow("open + stat", value, f"{opens}{known}.")


def _cold(storage: StorageFacts, curve: StorageCurve) -> StorageRow:
    if curve.cold:
        meaning = "Reads went past this machine's page cache, as the first epoch's will."
        if storage.kind.remote or storage.kind in _CACHES_BEYOND:
            meaning += " A cache beyond it (server, host) may still have helped."
        return StorageRow("cold", f"yes ({curve.method})", meaning)
    if storage.kind.in_memory:
        return StorageRow("cold", "no", "It is memory itself: there is nothing colder below.")
    meaning = "The page cache could not be passed: these are memory's rates, the first epoch will be slower."
    return StorageRow("cold", "no (warm)", meaning, ok=False)
