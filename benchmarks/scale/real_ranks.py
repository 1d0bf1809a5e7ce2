"""Real ranks on this machine: processes with a torch DataLoader each, which step together by an all-reduce of gloo."""

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
from typing import Any, NamedTuple

import numpy as np

from benchmarks.scale.sleeping_loads import BATCH, PREFETCH, WORKERS, Lock, Samples, SleepingLoad, make_file
from penstock.core.types import Ids
from penstock.data.order.blocks import BlockTable
from penstock.data.order.shuffle import epoch_order
from penstock.errors import PenstockError
from penstock.options import LANES

TIMEOUT_S = 120.0
STEPS = 48
WARM_UP = 12
"""Steps that are not timed: they use up the batches that the loaders made before the first step. A multiple of WORKERS,
so that whole rounds of the workers are timed."""

_context = get_context("forkserver")
_context.set_forkserver_preload(
    ["torch.distributed", "torch.utils.data", "penstock.watcher.watch", "benchmarks.scale.real_ranks"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksRun:
    """The settings of a run, the same for all ranks."""

    load: SleepingLoad
    folder: Path
    nodes: int = 1
    """Nodes that are simulated: each has a cache of its own."""
    ranks_per_node: int = 1
    epochs: int = 1
    steps: int = STEPS
    """Steps of an epoch."""
    cached: bool = False
    """Whether the nodes have caches for the samples that they read."""
    record: Path | None = None
    """Recording that rank 0 writes."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self.steps * BATCH * self.ranks


@dataclass(frozen=True, slots=True)
class EpochResult:
    """The result of one epoch of all ranks."""

    samples_s: float
    """Samples per second of all ranks after the warm-up."""
    hits: float
    """Share of the samples that were in a cache."""
    sample_numbers: tuple[int, ...]
    """The samples of all ranks, in no order."""


class RankEpoch(NamedTuple):
    """One epoch of one rank."""

    step_ends_s: list[float]
    sample_numbers: list[int]
    hits: int
    """Samples that were in the node's cache."""


def run_ranks(run: RanksRun) -> list[EpochResult]:
    """Run all epochs, one after the other, and return the result of each."""
    make_file(run.folder)
    _rendezvous_file(run).unlink(missing_ok=True)
    store = _context.Lock()
    with ExitStack() as cleanup:
        pipes = []
        for rank in range(run.ranks):
            receiver, sender = _context.Pipe(duplex=False)
            process = _context.Process(target=_run_rank, args=(rank, run, store, sender))
            process.start()
            cleanup.callback(process.join, 10.0)
            cleanup.callback(process.kill)
            sender.close()
            pipes.append(receiver)
        answers = [_receive(pipe, rank) for rank, pipe in enumerate(pipes)]
    return [_epoch_result(run, [answer[epoch] for answer in answers]) for epoch in range(run.epochs)]


def _rendezvous_file(run: RanksRun) -> Path:
    """Return the file through which the ranks find each other."""
    return run.folder / "rendezvous"


def _receive(pipe: Connection, rank: int) -> list[RankEpoch]:
    """Return the epochs of a rank; raise an error if the rank failed."""
    try:
        if not pipe.poll(TIMEOUT_S):
            raise PenstockError(f"rank {rank}: no answer in {TIMEOUT_S:.0f} s")
        answer: list[RankEpoch] | str = pipe.recv()
    except EOFError:
        raise PenstockError(f"rank {rank} ended without an answer") from None
    if isinstance(answer, str):
        raise PenstockError(f"rank {rank}: {answer}")
    return answer


def _epoch_result(run: RanksRun, ranks: Sequence[RankEpoch]) -> EpochResult:
    ends_s = ranks[0].step_ends_s
    warm_up = min(WARM_UP, len(ends_s) // 2)
    steps = len(ends_s) - warm_up
    steps_s = steps / (ends_s[-1] - ends_s[warm_up - 1])
    sample_numbers = tuple(number for rank in ranks for number in rank.sample_numbers)
    hits = sum(rank.hits for rank in ranks) / len(sample_numbers)
    return EpochResult(steps_s * BATCH * run.ranks, hits, sample_numbers)


def _run_rank(rank: int, run: RanksRun, store: Lock, pipe: Connection) -> None:
    """Train in this process, and send the epochs or the text of an error."""
    try:
        pipe.send(_train(rank, run, store))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
    pipe.close()


def _train(rank: int, run: RanksRun, store: Lock) -> list[RankEpoch]:
    import torch
    import torch.distributed as ranks

    # more workers than cores, but they sleep
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    ranks.init_process_group(
        "gloo",
        init_method=f"file://{_rendezvous_file(run)}",
        rank=rank,
        world_size=run.ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        return [_train_epoch(rank, epoch, run, store) for epoch in range(run.epochs)]
    finally:
        ranks.destroy_process_group()


def _train_epoch(rank: int, epoch: int, run: RanksRun, store: Lock) -> RankEpoch:
    """Run one epoch; in `all_reduce` the ranks wait for the slowest."""
    import torch
    import torch.distributed as ranks
    from torch.utils.data import DataLoader

    import penstock

    cache = run.folder / f"node{rank // run.ranks_per_node}" if run.cached else None
    if cache is not None:
        cache.mkdir(exist_ok=True)
    sample_numbers = _epoch_order(run, epoch)[rank :: run.ranks].tolist()
    dataset = Samples(run.load, run.folder / "samples.bin", store, sample_numbers, cache)
    loader: Any = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=BATCH,
        num_workers=WORKERS,
        prefetch_factor=PREFETCH,
        multiprocessing_context="fork",
    )
    record = run.record if rank == 0 else None
    ends_s: list[float] = []
    delivered: list[int] = []
    hits, gradient = 0, torch.zeros(1)
    with penstock.watch(loader, record=record, live=False) as batches:
        for step, (samples, cached) in enumerate(batches):
            time.sleep(run.load.step_duration_s(rank, epoch, step))
            ranks.all_reduce(gradient)
            ends_s.append(time.perf_counter())
            delivered += samples.tolist()
            hits += int(cached.sum())
    return RankEpoch(ends_s, delivered, hits)


def _epoch_order(run: RanksRun, epoch: int) -> Ids:
    """Return the order of penstock.Loader for blocks of one sample."""
    count = run.samples
    blocks = BlockTable(np.arange(count + 1), np.zeros(count, np.int64))
    return epoch_order(blocks, seed=7, epoch=epoch, lanes=LANES).samples
