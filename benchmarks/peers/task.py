"""What a contestant is given, what it hands over, and how that is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from benchmarks.peers.kinds import Kind

Decoder = Literal["own", "ours"]
DECODERS: tuple[Decoder, ...] = get_args(Decoder)

Batch = Mapping[str, Any]
"""Tensors by field, and the keys of their samples, a list of strings, under "__key__"."""
MakeBatches = Callable[[], Iterable[Batch]]
"""What the clock runs over: from its call to the last batch."""


@dataclass(frozen=True)
class Task:
    """One run: read these shards to their end, once, in batches."""

    kind: Kind
    shards: list[str]
    batch_size: int
    workers: int
    decoder: Decoder


class WrongOutputError(Exception):
    """A contestant's batch is not what all have to deliver."""


def checked_keys(kind: Kind, batch: Batch) -> list[str]:
    """The batch's keys, if its tensors have the agreed shapes and types: microseconds, so it runs inside the race."""
    keys = batch["__key__"]
    for name, (shape, dtype) in kind.outputs.items():
        tensor = batch[name]
        found = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.is_contiguous()
        if found != ((len(keys), *shape), dtype, True):
            raise WrongOutputError(f"{name} is {found}, where {((len(keys), *shape), dtype, True)} is agreed")
    return list(keys)


def content_digest(kind: Kind, batches: Iterable[Batch]) -> str:
    """Of all samples, keys and contents, in any order: equal only if every value of every sample is."""
    total = 0
    for batch in batches:
        for place, key in enumerate(checked_keys(kind, batch)):
            sample = hashlib.blake2b(key.encode(), digest_size=8)
            for name in kind.outputs:
                sample.update(batch[name][place].numpy().tobytes())
            total += int.from_bytes(sample.digest())
    return f"{total % 2**64:016x}"
