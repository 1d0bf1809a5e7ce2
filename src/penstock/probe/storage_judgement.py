"""Flag against measurement: what a storage claims to be, what it acts like, and which of them to believe."""

from __future__ import annotations

from enum import StrEnum

from penstock.probe.storage_curve import WITHIN, StorageCurve
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts

SEEK_MS = 1.5
"""A head needs 2 ms and more for a random place even with a full queue; flash and memory a tenth of that."""


class StorageBehaviour(StrEnum):
    """What the measurement says."""

    FLASH = "flash"
    """Random reads cost little more than their bytes."""
    SPINNING = "spinning disk"
    """Every random read loses `SEEK_MS` or more that no number of reads in flight hides."""
    STORE = "object store"
    """Every request waits for its first byte; many in flight hide that."""
    UNDETERMINED = "undetermined"
    """The reads came from memory, so they say nothing of what is below."""


def behaviour(storage: StorageFacts, curve: StorageCurve) -> StorageBehaviour:
    """The rule: a random read that loses `SEEK_MS` or more, at its best number in flight, is seeking."""
    if storage.kind is StorageKind.OBJECT_STORE:
        return StorageBehaviour.STORE
    if not curve.cold and not storage.kind.in_memory:
        return StorageBehaviour.UNDETERMINED
    return StorageBehaviour.SPINNING if curve.lost_ms_per_read() >= SEEK_MS else StorageBehaviour.FLASH


def claim(storage: StorageFacts) -> StorageBehaviour:
    """What kind and flag say it should act like."""
    if storage.kind in (StorageKind.NVME, StorageKind.SSD) or storage.kind.in_memory:
        return StorageBehaviour.FLASH
    if storage.rotational is None:
        return StorageBehaviour.UNDETERMINED
    return StorageBehaviour.SPINNING if storage.rotational else StorageBehaviour.FLASH


def judge(storage: StorageFacts, curve: StorageCurve) -> str:
    """One sentence: agreement, or the disagreement and that the measurement is believed."""
    seen, said = behaviour(storage, curve), claim(storage)
    if seen is StorageBehaviour.STORE:
        return of_a_store(curve)
    if seen is StorageBehaviour.UNDETERMINED:
        return "Undetermined: the reads could not be made cold, so they measured memory, not the storage."
    lost = f"a random read costs {curve.lost_ms_per_read():.1f} ms more than its bytes"
    if said is StorageBehaviour.UNDETERMINED:
        return f"Acts like {_with_article(seen)}: {lost}."
    if seen is said:
        return f"Acts like {_with_article(seen)}, as the system says: {lost}."
    rule = f"from {SEEK_MS} ms on it would be a spinning disk's"
    if seen is StorageBehaviour.SPINNING:
        rule = f"under {SEEK_MS} ms it would be flash's"
    return f"The system says {said}, the measurement {seen}: {lost} ({rule}). The measurement is believed."


def of_a_store(curve: StorageCurve) -> str:
    """Whether more requests at once are still the answer, or fewer bytes."""
    alone, best = curve.points[0], curve.best_sequential()
    if len(curve.points) == 1:
        return f"Undetermined: {alone.sequential_mb_per_s:.0f} MB/s with one request at a time, and no more were tried."
    enough = next(point for point in curve.points if point.sequential_mb_per_s >= WITHIN * best.sequential_mb_per_s)
    gain = f"one request at a time brings {alone.sequential_mb_per_s:.0f} MB/s"
    if enough is not alone:
        gain += f", {enough.in_flight} at once {enough.sequential_mb_per_s:.0f}"
    if enough is curve.points[-1]:
        return f"Latency-bound as far as was tried: {gain}. More requests in flight bring more."
    return f"Bandwidth-bound from there on: {gain}. Only fewer bytes help: a cache in front, or smaller codecs."


def _with_article(seen: StorageBehaviour) -> str:
    return "a spinning disk" if seen is StorageBehaviour.SPINNING else "flash"
