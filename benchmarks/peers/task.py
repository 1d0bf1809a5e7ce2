"""The task that a loader is given, the batches that it has to deliver, and the checks of these batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from benchmarks.peers.kinds import Kind

Decoder = Literal["own", "ours"]
"""The peer's own decoder (or Pillow, if it has none), or Penstock's decode functions."""
DECODERS: tuple[Decoder, ...] = get_args(Decoder)

Batch = Mapping[str, Any]
"""Tensors by field, and under "__key__" the list of the samples' keys."""
MakeBatches = Callable[[], Iterable[Batch]]
"""Makes the loader. The time of a run is measured from this call to the last batch."""


@dataclass(frozen=True)
class Task:
    """One run: read these shards to their end, once, in batches."""

    kind: Kind
    shards: list[str]
    batch_size: int
    workers: int
    decoder: Decoder


class WrongOutputError(Exception):
    """A loader's batch has other shapes or types than agreed."""


def checked_keys(kind: Kind, batch: Batch) -> list[str]:
    """Return the batch's keys; raise WrongOutputError unless its tensors have the agreed shapes and types.

    This takes microseconds, so it is done within the measured time.
    """
    keys = batch["__key__"]
    for name, (shape, dtype) in kind.outputs.items():
        tensor = batch[name]
        found = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.is_contiguous()
        agreed = (len(keys), *shape), dtype, True
        if found != agreed:
            raise WrongOutputError(f"(shape, dtype, contiguous) of {name} is {found}; {agreed} is agreed")
    return list(keys)


def content_digest(kind: Kind, batches: Iterable[Batch]) -> str:
    """Return a digest of the keys and values of all samples, which does not depend on the order of the samples."""
    total = 0
    for batch in batches:
        for place, key in enumerate(checked_keys(kind, batch)):
            sample = hashlib.blake2b(key.encode(), digest_size=8)
            for name in kind.outputs:
                sample.update(batch[name][place].numpy().tobytes())
            total += int.from_bytes(sample.digest())
    return f"{total % 2**64:016x}"
