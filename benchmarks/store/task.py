"""What a contestant is given, and what it has to hand over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.peers.task import Batch
from benchmarks.store.objects import BUCKET, DTYPE, SHAPE, Size
from penstock.shards.codecs.arrays import decode_npy

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@dataclass(frozen=True)
class Task:
    """One run: read these objects to their end, once, in batches."""

    endpoint: str
    size: Size
    workers: int

    @property
    def s3(self) -> list[str]:
        return [f"s3://{BUCKET}/{name}" for name in self.size.names]

    @property
    def http(self) -> list[str]:
        return [f"{self.endpoint}/{BUCKET}/{name}" for name in self.size.names]

    @property
    def environment(self) -> dict[str, str]:
        """By which S3 clients find the store."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint}


@dataclass(frozen=True)
class Agreed:
    """What every batch has to be, as `benchmarks.peers.task` checks it."""

    outputs: Mapping[str, tuple[tuple[int, ...], str]]


AGREED = Agreed({"array": (SHAPE, DTYPE)})


def stacked(samples: Iterable[tuple[str, bytes]]) -> Batch:
    """A peer's batch with a single copy: views of the members, laid side by side."""
    keys, members = zip(*samples, strict=True)
    arrays: list[Any] = [decode_npy(data) for data in members]
    return {"__key__": list(keys), "array": torch.from_numpy(np.stack(arrays))}
