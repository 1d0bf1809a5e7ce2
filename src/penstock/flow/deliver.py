"""The last step before the training loop: bad samples dealt with, keys added, slabs turned into tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.layout import SlabLayout
from penstock.core.settings import ErrorSettings
from penstock.core.work import BAD
from penstock.errors import PenstockError, SampleError
from penstock.flow.device import Arrays, copy, lease, to_tensors

Ids = NDArray[np.int64]
LEAST_FOR_RATE = 100
"""Samples seen before the share of bad ones is judged."""


class Finished(Protocol):
    """A complete batch, as the engine hands it over."""

    slab: int
    extras: list[tuple[int, str, Any]]

    @property
    def job(self) -> Any:
        """Has `samples`, the samples of its slots."""
        ...


class Naming(Protocol):
    """Who can say what a sample is called and where it lies."""

    def keys(self, samples: Ids) -> list[str]:
        """Their keys."""
        ...

    def where(self, sample: int) -> tuple[str, str, int]:
        """Shard, key, offset."""
        ...


class Slabs:
    """Lends slabs to the training loop, but never the last one: the engine needs it to go on."""

    def __init__(self, memory: memoryview, count: int, release: Callable[[int], None]) -> None:
        self.memory = memory
        self._most_lent = count - 1
        self._release: Callable[[int], None] | None = release
        self._lent: set[int] = set()  # touched by finalizers, in any thread: single operations on a set are atomic

    def lend(self, slab: int, arrays: Arrays) -> Arrays:
        """The arrays, over the slab; a copy if whoever keeps all batches has too many of the slabs already."""
        if not arrays or len(self._lent) >= self._most_lent:
            private = copy(arrays)
            self.give_back(slab)
            return private
        self._lent.add(slab)
        return lease(arrays, self.memory, lambda: self.give_back(slab))

    def give_back(self, slab: int) -> None:
        """The engine may use it again, if there still is one."""
        self._lent.discard(slab)
        if self._release is not None:
            self._release(slab)

    def close(self) -> None:
        """The engine is going. What is lent stays valid, and comes back to nobody."""
        self._release = None


class Delivery:
    """Keeps the books: delivered + bad = asked for, at the end of every pass."""

    def __init__(self, layout: SlabLayout, slabs: Slabs, naming: Naming, errors: ErrorSettings, device: str) -> None:
        self._layout = layout
        self._slabs = slabs
        self._naming = naming
        self._errors = errors
        self._device = device
        self.delivered = self.bad = 0

    def begin(self) -> None:
        """A new pass."""
        self.delivered = self.bad = 0

    def deliver(self, batch: Finished) -> dict[str, Any]:
        """The batch as the training loop gets it."""
        samples: Ids = batch.job.samples
        whole = self._layout.arrays(self._slabs.memory, batch.slab * self._layout.size)
        arrays = {name: array[: len(samples)] for name, array in whole.items()}
        lists = _lists(batch.extras, len(samples))
        failures = {slot: error for slot, name, error in batch.extras if name == BAD}
        if failures:
            try:
                kept = self._settle(samples, failures)
                arrays = {name: array[kept] for name, array in arrays.items()}  # a copy
            finally:
                self._slabs.give_back(batch.slab)
            lists = {name: [values[slot] for slot in kept] for name, values in lists.items()}
            samples = samples[kept]
        else:
            arrays = self._slabs.lend(batch.slab, arrays)
        self.delivered += len(batch.job.samples) - len(failures)
        self.bad += len(failures)
        values: dict[str, Any] = dict(arrays) if self._device == "numpy" else to_tensors(arrays, self._device)
        return {**values, **lists, "__key__": self._naming.keys(samples)}

    def check_books(self, asked: int) -> None:
        """Every sample of the pass is accounted for."""
        if self.delivered + self.bad != asked:
            raise PenstockError(
                f"{self.delivered} samples delivered and {self.bad} bad make not {asked}: this is a defect of ours",
                stage="deliver",
            )

    def _settle(self, samples: Ids, failures: dict[int, Exception]) -> list[int]:
        """List the bad samples; the slots to deliver instead, by the policy."""
        named = [self._name(int(samples[slot]), error) for slot, error in sorted(failures.items())]
        self._write_ledger(named)
        if self._errors.on_error == "raise":
            raise named[0]
        self._check_rate(len(failures), len(samples), named[0])
        good = [slot for slot in range(len(samples)) if slot not in failures]
        if self._errors.on_error == "skip" or not good:
            return good
        return [next((g for g in good if g >= slot), good[0]) for slot in range(len(samples))]

    def _name(self, sample: int, error: Exception) -> PenstockError:
        shard, key, offset = self._naming.where(sample)
        named = error if isinstance(error, PenstockError) else SampleError(str(error), stage="decode")
        return named.at(shard=shard, member=key, offset=offset)

    def _check_rate(self, bad: int, seen: int, example: PenstockError) -> None:
        total_bad, total = self.bad + bad, self.bad + self.delivered + seen
        if total >= LEAST_FOR_RATE and total_bad > self._errors.max_bad * total:
            raise SampleError(
                f"{total_bad} of {total} samples are bad, more than the {self._errors.max_bad:.1%} allowed; "
                f"the last: {example.reason}",
                shard=example.shard,
                member=example.member,
                offset=example.offset,
                stage="deliver",
                advice="Run 'penstock shards check --decode', or raise max_bad",
            )

    def _write_ledger(self, bad: Sequence[PenstockError]) -> None:
        if self._errors.ledger is not None:
            with open(self._errors.ledger, "ab") as ledger:
                for error in bad:
                    ledger.write(msgspec.json.encode({**error.where(), "reason": error.reason}) + b"\n")


def _lists(extras: list[tuple[int, str, Any]], count: int) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for slot, name, value in extras:
        if name != BAD:
            lists.setdefault(name, [None] * count)[slot] = value
    return lists
