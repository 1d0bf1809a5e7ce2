"""The last stage before the training loop: handles bad samples, moves batches to the device, adds keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from penstock.core.contracts import BAD_SAMPLE, CompleteBatch
from penstock.core.slab_layout import EncodedSizes, RaggedView, SlabLayout
from penstock.core.stats import GpuTimes
from penstock.core.types import Ids
from penstock.data.batch.bad_samples import check_bad_fraction, list_bad_samples
from penstock.data.batch.decoded_batch import (
    PADDING,
    DecodedBatch,
    Views,
    decoded_batch,
    only_encoded,
    replacement_slots,
    take_padding,
    take_slots,
)
from penstock.data.batch.slab_pool import SlabPool
from penstock.data.device.static_buffers import StaticBuffers
from penstock.data.device.transfer import Transfer, TransferLookahead
from penstock.data.sources.base import SampleNames, add_location
from penstock.errors import PenstockError, SampleError, StorageError
from penstock.options import ErrorOptions

log = logging.getLogger("penstock")

SKIPPED = object()
"""Delivered in place of a batch without a good sample, which the training loop does not get."""


class Delivery:
    """Delivers the batches of an engine. It counts samples: at the end of an epoch, delivered + bad = requested."""

    def __init__(
        self,
        layout: SlabLayout,
        slabs: SlabPool,
        names: SampleNames,
        errors: ErrorOptions,
        transfer: Transfer,
        static_buffers: StaticBuffers | None = None,
        *,
        several_ranks: bool = False,
    ) -> None:
        """`several_ranks`: whether other ranks get a batch for each one of this rank, so that none may be left out."""
        self._layout = layout
        self._slabs = slabs
        self._names = names
        self._errors = errors
        self._transfer = transfer
        self._static_buffers = static_buffers
        self._keeps_spare = errors.on_error == "replace" or (errors.on_error == "skip" and several_ranks)
        self._leaves_out_batches = errors.on_error == "skip" and not several_ranks
        self._warned = False
        """Whether a batch without a good sample has been logged."""
        self.begin_epoch()

    @property
    def lookahead(self) -> TransferLookahead:
        """How many batches are sent to the device before the one ahead of them is delivered."""
        return self._transfer.lookahead

    @property
    def gpu_times(self) -> GpuTimes | None:
        """How the GPU's time between steps was spent; None if batches stay on the CPU."""
        return self._transfer.gpu_times

    def begin_epoch(self) -> None:
        """Reset the counts for a new epoch."""
        self.delivered = self.bad = 0
        self._spare: DecodedBatch | None = None
        """One good sample that was delivered before, for a batch that has none itself and cannot be left out."""

    def batch_requested(self) -> None:
        """Note that the training loop asks for its next batch."""
        self._transfer.batch_requested()

    def reclaim_slabs(self) -> None:
        """Return slabs that have been copied to the engine. Called before the engine is asked for a batch."""
        self._transfer.reclaim_slabs()

    def send(self, complete: CompleteBatch) -> Any:
        """Handle bad samples, and start to move the batch to the device. The result is for `deliver`."""
        requested = len(complete.request.samples)
        views, encoded_sizes = self._views(complete), self._encoded_sizes(complete)
        failures = {slot: error for slot, name, error in complete.extras if name == BAD_SAMPLE}
        if failures:
            try:
                batch = self._without_bad(failures, decoded_batch(complete, views, encoded_sizes))
            finally:
                self._slabs.give_back(complete.slab)
        elif self._transfer.lookahead.max_batches and not self._layout.ragged_bytes:
            # Nothing but the copy uses the slab. Arrays without a fixed shape, however, are delivered as views of it.
            give_back = partial(self._slabs.give_back, complete.slab)
            batch = decoded_batch(complete, views, encoded_sizes, give_back)
        else:
            batch = decoded_batch(complete, self._slabs.lend(complete.slab, views), encoded_sizes)
        self.delivered += requested - len(failures)
        self.bad += len(failures)
        if batch is None:
            return SKIPPED
        if self._keeps_spare and len(batch.samples):
            spare = batch.take([len(batch.samples) - 1])
            self._spare = replace(spare, padding=np.ones(1, bool))  # it is delivered now
        return self._transfer.send(batch)

    def deliver(self, sent: Any) -> Any:
        """Return a batch that was sent, as the training loop gets it; SKIPPED if it has no good sample."""
        if sent is SKIPPED:
            return SKIPPED
        batch = self._transfer.receive(sent)
        tensors, lists, samples, padding = batch.tensors, batch.lists, batch.samples, batch.padding
        if batch.failures:
            slots = self._slots_after_gpu_failures(batch.failures, samples)
            if not slots:
                return SKIPPED
            tensors = {name: tensor[slots] for name, tensor in tensors.items()}
            lists, samples, padding = take_slots(lists, slots), samples[slots], take_padding(padding, slots)
        if self._names.marks_padding:
            tensors = {**tensors, PADDING: self._transfer.flags(len(samples), padding)}
        if self._static_buffers is not None:
            tensors = self._static_buffers.store(tensors)
        return self._names.assemble({**tensors, **lists}, samples)

    def check_counts(self, requested: int) -> None:
        """Raise an error unless every sample of the epoch was delivered or counted as bad."""
        if self.delivered + self.bad != requested:
            raise PenstockError(
                f"{self.delivered} samples delivered and {self.bad} bad are not the {requested} requested: "
                "this is a defect of Penstock",
                stage="deliver",
            )

    def _views(self, complete: CompleteBatch) -> Views:
        """Return views of what the workers wrote into the slab."""
        memory, start = self._slabs.memory, complete.slab * self._layout.size
        count = len(complete.request.samples)
        views: Views = {name: array[:count] for name, array in self._layout.arrays(memory, start).items()}
        buffers = self._layout.ragged_buffers(memory, start)
        for slot, name, value in complete.extras:
            if isinstance(value, RaggedView):
                views[name, slot] = value.array_in(buffers[name][slot])
        return views

    def _encoded_sizes(self, complete: CompleteBatch) -> dict[str, EncodedSizes]:
        """Return copies of the encoded sizes: the slab may be used again before the GPU has decoded its images."""
        found = self._layout.encoded_sizes(self._slabs.memory, complete.slab * self._layout.size)
        count = len(complete.request.samples)
        return only_encoded({name: sizes[:count].copy() for name, sizes in found.items()})

    def _without_bad(self, failures: Mapping[int, Exception], batch: DecodedBatch) -> DecodedBatch | None:
        """Return the batch to deliver instead of one with bad samples; None if it is left out."""
        errors = self._located(failures, batch.samples)
        self._check_rate(len(failures), len(batch.samples), errors[0])
        slots = self._slots_to_deliver(failures, len(batch.samples))
        if slots:
            return batch.take(slots)
        if self._leaves_out_batches:
            self._warn("it is left out", errors[0])
            return None
        if self._spare is None:
            raise _all_bad(len(batch.samples), errors[0])
        if self._errors.on_error == "skip":
            self._warn("the other ranks have a batch, so this rank repeats a good sample", errors[0])
        return self._spare.take([0] * len(batch.samples))

    def _warn(self, outcome: str, example: PenstockError) -> None:
        """Log the first batch without a good sample."""
        if not self._warned:
            self._warned = True
            log.warning("a batch has no good sample: %s. The first bad one: %s", outcome, example)

    def _slots_after_gpu_failures(self, failures: Mapping[int, Exception], samples: Ids) -> list[int]:
        """Return the slots to deliver of a batch with images that failed on the GPU, after being counted as good.

        No slots mean that the batch is left out.
        """
        errors = self._located(failures, samples)
        bad = len(np.unique(samples[list(failures)]))  # a sample that also replaces another one may fail in both slots
        self.delivered -= bad
        self._check_rate(bad, bad, errors[0])
        self.bad += bad
        slots = self._slots_to_deliver(failures, len(samples))
        if not slots:
            if not self._leaves_out_batches:
                raise _all_bad(len(samples), errors[0])
            self._warn("it is left out", errors[0])
        return slots

    def _located(self, failures: Mapping[int, Exception], samples: Ids) -> list[PenstockError]:
        """Return the errors with their locations, and list them in the file of bad samples.

        Raise the first one if no sample may be bad, or if the storage failed and not the sample.
        """
        errors = [self._with_location(int(samples[slot]), error) for slot, error in sorted(failures.items())]
        for error in errors:
            if isinstance(error, StorageError):  # of a worker that reads itself
                raise error
        list_bad_samples(errors, self._errors)
        if self._errors.on_error == "raise":
            raise errors[0]
        return errors

    def _slots_to_deliver(self, failures: Mapping[int, Exception], count: int) -> list[int]:
        """Return the slots to deliver under `on_error`; none if all are bad."""
        good = [slot for slot in range(count) if slot not in failures]
        return good if self._errors.on_error == "skip" or not good else replacement_slots(good, count)

    def _with_location(self, sample: int, error: Exception) -> PenstockError:
        sample_error = error if isinstance(error, PenstockError) else SampleError(str(error), stage="decode")
        return add_location(sample_error, sample, self._names)

    def _check_rate(self, bad: int, count: int, example: PenstockError) -> None:
        """Raise an error if too many samples are bad, with `bad` of `count` that are not counted yet."""
        check_bad_fraction(self.bad + bad, self.bad + self.delivered + count, example, self._errors)


def _all_bad(count: int, example: PenstockError) -> SampleError:
    """Return the error for a batch without a good sample.

    An empty batch is not delivered, because hardly any training step works with one. The batch cannot be left out if
    other ranks have one, and there is no good sample yet that could be repeated.
    """
    return SampleError(
        f"all {count} samples of a batch are bad, so there is nothing to deliver; the first: {example.reason}",
        shard=example.shard,
        member=example.member,
        offset=example.offset,
        stage="deliver",
        advice="Use larger batches, or leave these samples out",
    )
