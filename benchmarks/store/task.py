"""The task that a loader is given, and the batches that it has to deliver."""

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
    """One run: read these objects once, in batches."""

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
        """Environment variables that direct S3 clients to the store."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint}


@dataclass(frozen=True)
class Agreed:
    """Shapes and types of the batches, in the form in which `benchmarks.peers.task` checks them."""

    outputs: Mapping[str, tuple[tuple[int, ...], str]]


AGREED = Agreed({"array": (SHAPE, DTYPE)})


def stacked(samples: Iterable[tuple[str, bytes]]) -> Batch:
    """Return a peer's batch, made with a single copy: views of the NPY files are stacked."""
    keys, members = zip(*samples, strict=True)
    arrays: list[Any] = [decode_npy(data) for data in members]
    return {"__key__": list(keys), "array": torch.from_numpy(np.stack(arrays))}
