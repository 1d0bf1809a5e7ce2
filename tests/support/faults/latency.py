"""Faults in which samples wait while cores and disks are idle, so that more requests at a time would help."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedRWPair

import numpy as np
from numpy.typing import NDArray

from tests.support.faults.detached_process import detached_process
from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.image_dataset import BATCH, Wait, decode_corner, image_dataset, image_files, loader


@fault(expect="latency_bound")
def slow_samples(case: Case) -> Iterator[Training]:
    """Each sample waits for a fixed time in __getitem__."""
    yield Training(loader=loader(image_dataset(case, Wait(case.pick(mild=0.004, severe=0.012, removed=0.0)))))


@fault(expect="latency_bound")
def slow_store(case: Case) -> Iterator[Training]:
    """Samples come over a socket from a store that answers each request late."""
    with _images_in_store(case, delay_s=case.pick(mild=0.004, severe=0.012, removed=0.0)) as dataset:
        yield Training(loader=loader(dataset))


@fault(expect="tail_latency")
def late_answers(case: Case) -> Iterator[Training]:
    """One request in fifty is answered very late, whichever sample it is for."""
    tail_s = case.pick(mild=0.08, severe=0.2, removed=0.0)
    with _images_in_store(case, delay_s=0.0005, tail_share=0.02, tail_s=tail_s) as dataset:
        yield Training(loader=loader(dataset))


@dataclass(slots=True)
class RemoteImages:
    """Map-style dataset of images in a store (see programs/store.py); each worker opens its own connection."""

    port: int
    names: tuple[str, ...]
    length: int
    _connection: BufferedRWPair | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        if self._connection is None:
            self._connection = _connect(self.port)
        self._connection.write(self.names[index % len(self.names)].encode() + b"\n")
        self._connection.flush()
        return decode_corner(self._connection.read(int(self._connection.readline())))


def _connect(port: int) -> BufferedRWPair:
    with socket.create_connection(("127.0.0.1", port)) as connection:  # the file that is returned keeps it open
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection.makefile("rwb")


@contextmanager
def _images_in_store(
    case: Case, delay_s: float, tail_share: float = 0.0, tail_s: float = 0.0
) -> Iterator[RemoteImages]:
    """Run a store until the block ends: every request waits `delay_s`, and a share of them `tail_s` longer."""
    files = image_files(case.folder)
    with detached_process("store", str(files[0].parent), str(delay_s), str(tail_share), str(tail_s)) as port:
        yield RemoteImages(int(port), tuple(file.name for file in files), case.steps * BATCH)
