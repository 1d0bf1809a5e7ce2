"""Every sample is waited for, and no core or disk is busy meanwhile: more requests at a time would help."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedRWPair

import numpy as np
from numpy.typing import NDArray

from tests.support.faults.apart import apart
from tests.support.faults.fault import Case, Training, fault
from tests.support.faults.material import BATCH, Wait, decoded, loader, picture_files, pictures


@fault(expect="latency_bound")
def slow_samples(case: Case) -> Iterator[Training]:
    """Each sample waits a fixed while in __getitem__."""
    yield Training(loader=loader(pictures(case, Wait(case.pick(mild=0.004, severe=0.012, removed=0.0)))))


@fault(expect="latency_bound")
def slow_store(case: Case) -> Iterator[Training]:
    """Samples come from a store over a socket, which answers each request late."""
    with _store(case, delay_s=case.pick(mild=0.004, severe=0.012, removed=0.0)) as dataset:
        yield Training(loader=loader(dataset))


@fault(expect="tail_latency")
def late_answers(case: Case) -> Iterator[Training]:
    """One request in fifty is answered very late, whichever sample it is for."""
    tail_s = case.pick(mild=0.08, severe=0.2, removed=0.0)
    with _store(case, delay_s=0.0005, tail_share=0.02, tail_s=tail_s) as dataset:
        yield Training(loader=loader(dataset))


@dataclass(slots=True)
class Remote:
    """Map-style over the store; each worker has a connection of its own."""

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
        return decoded(self._connection.read(int(self._connection.readline())))


def _connect(port: int) -> BufferedRWPair:
    with socket.create_connection(("127.0.0.1", port)) as connected:  # the file keeps it open
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected.makefile("rwb")


@contextmanager
def _store(case: Case, delay_s: float, tail_share: float = 0.0, tail_s: float = 0.0) -> Iterator[Remote]:
    files = picture_files(case.folder)
    with apart("store", str(files[0].parent), str(delay_s), str(tail_share), str(tail_s)) as port:
        yield Remote(int(port), tuple(file.name for file in files), case.steps * BATCH)
