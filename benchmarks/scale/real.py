"""Real ranks on this machine: processes with a torch DataLoader each, in step by an all-reduce of gloo."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale.toys import BATCH, PREFETCH, WORKERS, Lock, Samples, Toy, make_file
from penstock.data.order.blocks import BlockTable
from penstock.data.order.shuffle import epoch_order
from penstock.errors import PenstockError
from penstock.options import LANES

TIMEOUT_S = 120.0
STEPS = 48
WARM_UP = 12
"""Steps left out: what loaders made before the first is used up by then. A multiple of the workers."""

_context = get_context("forkserver")
_context.set_forkserver_preload(
    ["torch.distributed", "torch.utils.data", "penstock.watcher.watch", "benchmarks.scale.real"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What all ranks of one run know."""

    toy: Toy
    folder: Path
    nodes: int = 1
    ranks_per_node: int = 1
    epochs: int = 1
    steps: int = STEPS
    cached: bool = False
    """Whether a node keeps what it has read."""
    record: Path | None = None
    """Written by rank 0."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def samples(self) -> int:
        """Of an epoch, over all ranks."""
        return self.steps * BATCH * self.ranks


@dataclass(frozen=True, slots=True)
class Ran:
    """One epoch of all ranks."""

    samples_s: float
    """After the first steps, in whole rounds of the workers."""
    hits: float
    """Share of the samples that were in a cache."""
    ids: tuple[int, ...]
    """Of the samples, over all ranks, in no order."""


def run_ranks(course: Course) -> list[Ran]:
    """All epochs, one after the other."""
    make_file(course.folder)
    (course.folder / "meeting").unlink(missing_ok=True)
    store = _context.Lock()
    with ExitStack() as ending:
        pipes = []
        for rank in range(course.ranks):
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(target=_rank, args=(rank, course, store, theirs))
            process.start()
            ending.callback(process.join, 10.0)
            ending.callback(process.kill)
            theirs.close()
            pipes.append(ours)
        answers = [_answer(pipe, rank) for rank, pipe in enumerate(pipes)]
    return [_ran(course, [answer[epoch] for answer in answers]) for epoch in range(course.epochs)]


Epoch = tuple[list[float], list[int], int]
"""Of one rank: when each step was over, the samples it had, how many of them from the cache."""


def _answer(pipe: Connection, rank: int) -> list[Epoch]:
    try:
        if not pipe.poll(TIMEOUT_S):
            raise PenstockError(f"rank {rank}: no answer in {TIMEOUT_S:.0f} s")
        found: list[Epoch] | str = pipe.recv()
    except EOFError:
        raise PenstockError(f"rank {rank} ended without an answer") from None
    if isinstance(found, str):
        raise PenstockError(f"rank {rank}: {found}")
    return found


def _ran(course: Course, ranks: Sequence[Epoch]) -> Ran:
    ends_s = ranks[0][0]
    warm_up = min(WARM_UP, len(ends_s) // 2)
    steps = len(ends_s) - warm_up
    rate = steps / (ends_s[-1] - ends_s[warm_up - 1])
    ids = tuple(sample for _, samples, _ in ranks for sample in samples)
    return Ran(rate * BATCH * course.ranks, sum(hits for _, _, hits in ranks) / len(ids), ids)


def _rank(rank: int, course: Course, store: Lock, pipe: Connection) -> None:
    try:
        pipe.send(_train(rank, course, store))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
    pipe.close()


def _train(rank: int, course: Course, store: Lock) -> list[Epoch]:
    import torch
    import torch.distributed as ranks

    warnings.filterwarnings("ignore", message="This DataLoader will create")  # they sleep: cores are not asked for
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    ranks.init_process_group(
        "gloo",
        init_method=f"file://{course.folder / 'meeting'}",
        rank=rank,
        world_size=course.ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        return [_epoch(rank, epoch, course, store) for epoch in range(course.epochs)]
    finally:
        ranks.destroy_process_group()


def _epoch(rank: int, epoch: int, course: Course, store: Lock) -> Epoch:
    """The loop; `all_reduce` is where ranks wait for the slowest."""
    import torch
    import torch.distributed as ranks
    from torch.utils.data import DataLoader

    import penstock

    cache = course.folder / f"node{rank // course.ranks_per_node}" if course.cached else None
    if cache is not None:
        cache.mkdir(exist_ok=True)
    ids = _order(course, epoch)[rank :: course.ranks].tolist()
    dataset = Samples(course.toy, course.folder / "samples.bin", store, ids, cache)
    loader: Any = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=BATCH,
        num_workers=WORKERS,
        prefetch_factor=PREFETCH,
        multiprocessing_context="fork",
    )
    record = course.record if rank == 0 else None
    ends_s: list[float] = []
    had: list[int] = []
    hits, gradient = 0, torch.zeros(1)
    with penstock.watch(loader, record=record, live=False) as batches:
        for step, (samples, kept) in enumerate(batches):
            time.sleep(course.toy.step_of(rank, epoch, step))
            ranks.all_reduce(gradient)
            ends_s.append(time.perf_counter())
            had += samples.tolist()
            hits += int(kept.sum())
    return ends_s, had, hits


def _order(course: Course, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """As penstock.Loader has it, every sample a block of its own."""
    count = course.samples
    blocks = BlockTable(np.arange(count + 1), np.zeros(count, np.int64))
    return epoch_order(blocks, seed=7, epoch=epoch, lanes=LANES)
