"""The last step before the training loop: bad samples dealt with, keys added, slabs turned into tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from penstock.core.contracts import BAD_SAMPLE
from penstock.core.slab_layout import EncodedSizes, RaggedView, SlabLayout
from penstock.core.stats import GpuTimes
from penstock.data.batch.bad_samples import BatchContent, Views, batch_content, replacement_slots, some_encoded, taken
from penstock.data.device.device_stage import Ids, SlabBatch
from penstock.data.device.host import Transfer, TransferLookahead, copy, lease
from penstock.data.device.static_buffers import StaticBuffers
from penstock.errors import PenstockError, SampleError, StorageError
from penstock.options import ErrorOptions

LEAST_FOR_RATE = 100
"""Samples seen before the share of bad ones is judged."""


class CompleteBatch(Protocol):
    """A complete batch, as the engine hands it over."""

    slab: int
    extras: list[tuple[int, str, Any]]

    @property
    def job(self) -> Any:
        """Has `samples`, those of its slots, and their `epoch`."""
        ...


class SampleNames(Protocol):
    """Who can say what a sample is called, where it lies, and how a batch looks."""

    def finish(self, values: dict[str, Any], samples: Ids) -> Any:
        """The batch as the training loop is to see it, of arrays or tensors and lists by name."""
        ...

    def where(self, sample: int, suffix: str | None = None) -> tuple[str, str, int | None]:
        """Shard, name and, if it has one, offset of that part of a sample; without a suffix, of the sample."""
        ...


def locate(error: PenstockError, sample: int, naming: SampleNames) -> PenstockError:
    """Say where, unless that is known: a worker knows no more of a member's name than the suffix."""
    if error.shard is not None:
        return error
    shard, member, offset = naming.where(sample, error.member)
    error.member = member
    return error.at(shard=shard, offset=offset)


class SlabPool:
    """Lends slabs to the training loop, but never the last one: the engine needs it to go on."""

    def __init__(self, memory: memoryview, count: int, release: Callable[[int], None]) -> None:
        self.memory = memory
        self._most_lent = count - 1
        self._release: Callable[[int], None] | None = release
        self._lent: set[int] = set()  # touched by finalizers, in any thread: single operations on a set are atomic

    def lend(self, slab: int, views: Views) -> Views:
        """The views, over the slab; copies if whoever keeps all batches has too many of the slabs already."""
        if not views or len(self._lent) >= self._most_lent:
            private = copy(views)
            self.give_back(slab)
            return private
        self._lent.add(slab)
        return lease(views, self.memory, lambda: self.give_back(slab))

    def give_back(self, slab: int) -> None:
        """The engine may use it again, if there still is one."""
        self._lent.discard(slab)
        release = self._release  # another thread may be closing
        if release is not None:
            release(slab)

    def close(self) -> None:
        """The engine is going. What is lent stays valid, and comes back to nobody."""
        self._release = None


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch on its way to the training loop."""

    sent: Any
    lists: dict[str, list[Any]]
    samples: Ids


class Delivery:
    """Keeps the books: delivered + bad = asked for, at the end of every pass."""

    def __init__(
        self,
        layout: SlabLayout,
        slabs: SlabPool,
        naming: SampleNames,
        errors: ErrorOptions,
        way: Transfer,
        stable: StaticBuffers | None = None,
    ) -> None:
        self._layout = layout
        self._slabs = slabs
        self._naming = naming
        self._errors = errors
        self._way = way
        self._stable = stable
        self.begin()

    @property
    def lead(self) -> TransferLookahead:
        """How many batches should set off before the one ahead of them is handed over."""
        return self._way.lead

    @property
    def gpu_times(self) -> GpuTimes | None:
        """Where the card's time went, if there is one."""
        return self._way.times

    def begin(self) -> None:
        """A new pass."""
        self.delivered = self.bad = 0
        self._spare: BatchContent | None = None
        """A good sample, where bad ones are replaced: for a batch that has none itself."""

    def deliver(self, batch: CompleteBatch) -> Any:
        """The batch as the training loop gets it."""
        return self.hand_over(self.prepare(batch))

    def asked(self) -> None:
        """The loop has come back for the next batch."""
        self._way.asked()

    def make_room(self) -> None:
        """Before a batch is asked for: slabs that are done with go back."""
        self._way.make_room()

    def prepare(self, batch: CompleteBatch) -> PreparedBatch:
        """Deal with bad samples, and set the batch on its way."""
        samples: Ids = batch.job.samples
        views, encoded = self._views(batch), self._encoded(batch)
        failures = {slot: error for slot, name, error in batch.extras if name == BAD_SAMPLE}
        copied = None
        if failures:
            try:
                content = self._without(failures, batch_content(samples, batch.extras, views, encoded))
            finally:
                self._slabs.give_back(batch.slab)
        elif self._way.lead.most and not self._layout.ragged_bytes:  # what lies in a room is the loop's to see
            content = batch_content(samples, batch.extras, views, encoded)
            copied = partial(self._slabs.give_back, batch.slab)
        else:
            content = batch_content(samples, batch.extras, self._slabs.lend(batch.slab, views), encoded)
        if self._errors.on_error == "replace" and len(samples):
            self._spare = content.take([len(samples) - 1])
        self.delivered += len(samples) - len(failures)
        self.bad += len(failures)
        shipment = SlabBatch(content.arrays, batch.slab, content.samples, batch.job.epoch, content.encoded, copied)
        return PreparedBatch(self._way.send(shipment), content.lists, content.samples)

    def hand_over(self, prepared: PreparedBatch) -> Any:
        """The batch as the training loop gets it."""
        arrived, lists, samples = self._way.receive(prepared.sent), prepared.lists, prepared.samples
        tensors = arrived.tensors
        if arrived.failures:
            slots = self._left_late(arrived.failures, samples)
            tensors = {name: tensor[slots] for name, tensor in tensors.items()}
            lists, samples = taken(lists, slots), samples[slots]
        if self._stable is not None:
            tensors = self._stable.hold(tensors)
        return self._naming.finish({**tensors, **lists}, samples)

    def _views(self, batch: CompleteBatch) -> Views:
        """What the workers have put into the slab."""
        memory, start = self._slabs.memory, batch.slab * self._layout.size
        count = len(batch.job.samples)
        views: Views = {name: array[:count] for name, array in self._layout.arrays(memory, start).items()}
        rooms = self._layout.ragged_buffers(memory, start)
        for slot, name, value in batch.extras:
            if isinstance(value, RaggedView):
                views[name, slot] = value.array_in(rooms[name][slot])
        return views

    def _encoded(self, batch: CompleteBatch) -> dict[str, EncodedSizes]:
        """Which slots hold JPEGs, in memory of their own: the slab may be used again before the card has decoded."""
        notes = self._layout.encoded_sizes(self._slabs.memory, batch.slab * self._layout.size)
        count = len(batch.job.samples)
        return some_encoded({name: of_array[:count].copy() for name, of_array in notes.items()})

    def check_books(self, asked: int) -> None:
        """Every sample of the pass is accounted for."""
        if self.delivered + self.bad != asked:
            raise PenstockError(
                f"{self.delivered} samples delivered and {self.bad} bad make not {asked}: this is a defect of ours",
                stage="deliver",
            )

    def _without(self, failures: Mapping[int, Exception], content: BatchContent) -> BatchContent:
        """What to deliver instead, by the policy."""
        named = self._named(failures, content.samples)
        self._check_rate(len(failures), len(content.samples), named[0])
        slots = self._left(failures, len(content.samples))
        if not slots and self._spare is not None:
            return self._spare.take([0] * len(content.samples))
        if not slots:
            raise _nothing_left(len(content.samples), named[0])
        return content.take(slots)

    def _left_late(self, failures: Mapping[int, Exception], samples: Ids) -> list[int]:
        """The same for pictures that failed on the card: which slots to deliver; they had been counted as good."""
        named = self._named(failures, samples)
        bad = len(np.unique(samples[list(failures)]))  # one that stands in for another may fail in both places
        self.delivered -= bad
        self._check_rate(bad, bad, named[0])
        self.bad += bad
        slots = self._left(failures, len(samples))
        if not slots:
            raise _nothing_left(len(samples), named[0])
        return slots

    def _named(self, failures: Mapping[int, Exception], samples: Ids) -> list[PenstockError]:
        """List the bad samples; where one is too many, raise the first."""
        named = [self._name(int(samples[slot]), error) for slot, error in sorted(failures.items())]
        for error in named:
            if isinstance(error, StorageError):  # of a worker that reads for itself: no sample is bad, the storage is
                raise error
        self._write_ledger(named)
        if self._errors.on_error == "raise":
            raise named[0]
        return named

    def _left(self, failures: Mapping[int, Exception], count: int) -> list[int]:
        """Slots to deliver, by the policy; none if all are bad."""
        good = [slot for slot in range(count) if slot not in failures]
        return good if self._errors.on_error == "skip" or not good else replacement_slots(good, count)

    def _name(self, sample: int, error: Exception) -> PenstockError:
        named = error if isinstance(error, PenstockError) else SampleError(str(error), stage="decode")
        return locate(named, sample, self._naming)

    def _check_rate(self, bad: int, seen: int, example: PenstockError) -> None:
        total_bad, total = self.bad + bad, self.bad + self.delivered + seen
        if total >= LEAST_FOR_RATE and total_bad > self._errors.max_bad_fraction * total:
            raise SampleError(
                f"{total_bad} of {total} samples are bad, more than the {self._errors.max_bad_fraction:.1%} allowed; "
                f"the last: {example.reason}",
                shard=example.shard,
                member=example.member,
                offset=example.offset,
                stage="deliver",
                advice="Run 'penstock shards check --decode', or raise max_bad_fraction",
            )

    def _write_ledger(self, bad: Sequence[PenstockError]) -> None:
        if self._errors.bad_samples_path is not None:
            with open(self._errors.bad_samples_path, "ab") as ledger:
                for error in bad:
                    ledger.write(msgspec.json.encode({**error.where(), "reason": error.reason}) + b"\n")


def _nothing_left(count: int, example: PenstockError) -> SampleError:
    """Not an empty batch, which hardly any training step survives, nor one fewer: the ranks would part company."""
    return SampleError(
        f"all {count} samples of a batch are bad, so there is nothing to deliver; the first: {example.reason}",
        shard=example.shard,
        member=example.member,
        offset=example.offset,
        stage="deliver",
        advice='Use on_error="replace", which repeats a good sample seen before, or larger batches',
    )
