"""A simulator of many ranks that train together: each has its own loader, and every step ends when all ranks are done.

The loader of a rank works as in simulator.py, in order. A worker makes a batch in stages at different resources: it
waits for answers, uses the object store that all ranks share, the network and the page cache of its node, and the cores
of its node. Each rank draws its batches and steps at random from the given ones, so ranks differ as much as the batches
of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np

from penstock.core.types import Floats
from penstock.errors import SettingError
from penstock.model.event_simulator import GOLDEN_RATIO, SharedResource, StageTime, rotate_stages
from penstock.model.simulation_data import WorkerPool

RANK_STAGES = ("latency_s", "store_s", "network_s", "cache_s", "cpu_s")
"""The stages in which a worker makes a batch, in this order."""
LATENCY, STORE, NETWORK, CACHE, CPU = range(len(RANK_STAGES))
_REVERSED_STAGES = tuple(reversed(range(len(RANK_STAGES))))
NODE_STAGES = (NETWORK, CACHE, CPU)
"""Stages whose resource belongs to one node."""
TIMER = -1
"""Number of a timer among the numbers of the resources."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RankGroup:
    """Equal ranks on equal nodes; costs are seconds as they would be if nothing else ran at the same time."""

    nodes: int
    ranks_per_node: int
    workers: int
    """Number of workers of each rank; 0 if its training loop makes the batches itself."""
    prefetch: int = 2
    cores: float = inf
    """Number of cores of each node."""
    work: Floats
    """Seconds to make a batch: a row per stage (see RANK_STAGES), a column for each batch that ranks draw from."""
    step_s: Floats
    """Seconds of a step, receiving the batch included; drawn independently of the batches."""
    step_cpu_s: Floats
    """Seconds of the step that need a core of the node."""

    def __post_init__(self) -> None:
        if min(self.nodes, self.ranks_per_node) < 1:
            raise SettingError(f"{self.nodes} nodes of {self.ranks_per_node} ranks have no rank at all")
        if self.work.shape[0] != len(RANK_STAGES) or not self.work.shape[1] or len(self.step_s) != len(self.step_cpu_s):
            raise SettingError("ranks need batches with one row per stage, and CPU seconds for every step")

    @property
    def ranks(self) -> int:
        """Number of ranks on all nodes together."""
        return self.nodes * self.ranks_per_node

    def worker_pool(self) -> WorkerPool:
        """Return the workers of one rank, with the cores of its node."""
        return WorkerPool(self.workers, self.prefetch, cores=self.cores)


@dataclass(frozen=True, slots=True)
class SynchronousRun:
    """The simulated rate of a group of ranks, and what they waited for."""

    steps_per_s: float
    """Steps of the group per second; each of them is one step of every rank."""
    data_share: float
    """Share of the time in which the slowest rank of a step waited for its batch."""
    others_share: float
    """Share of the ranks' time in which they waited for slower ranks at the end of a step, for whatever reason."""


def simulate_ranks(group: RankGroup, steps: int, warm_up: int, seed: int = 0) -> SynchronousRun:
    """Simulate so many steps, after `warm_up` steps in which the batches prefetched at the start are used up."""
    if steps < 1 or warm_up < 1:
        raise SettingError(f"{steps} steps after {warm_up} warm-up steps give no rate")
    run = _RankSimulation(group, warm_up + steps, seed)
    run.run()
    start_s = run.ends_s[warm_up - 1]
    seconds = run.ends_s[-1] - start_s
    if seconds <= 0:
        return SynchronousRun(inf, 0.0, 0.0)
    data_s, others_s = sum(run.data_s[warm_up:]), sum(run.others_s[warm_up:])
    return SynchronousRun(steps / seconds, data_s / seconds, others_s / seconds / group.ranks)


class _RankSimulation:
    """An event-driven simulation. The processes are numbered: rank × (W + 1) + worker, with the loop as worker W."""

    def __init__(self, group: RankGroup, steps: int, seed: int) -> None:
        self._group, self._steps, self._pool = group, steps, group.worker_pool()
        random = np.random.default_rng(seed)
        self._per_rank, self._prefetched = group.workers + 1, max(1, self._pool.outstanding_tasks)
        self._drawn = random.integers(group.work.shape[1], size=(group.ranks, steps + self._prefetched)).tolist()
        self._work = group.work.tolist()
        drawn_steps = random.integers(len(group.step_s), size=(group.ranks, steps))
        self._step_s, self._step_cpu_s = group.step_s[drawn_steps].tolist(), group.step_cpu_s[drawn_steps].tolist()

        processes = group.ranks * self._per_rank
        equal_shares = [1 / number for number in range(1, processes + 1)]
        on_node = range(1, group.ranks_per_node * self._per_rank + 1)
        cores = [self._pool.core_share(number) for number in on_node]
        self._resources = [SharedResource(equal_shares)]
        """The store, then the resources of NODE_STAGES for each node."""
        for _ in range(group.nodes):
            self._resources += [SharedResource(equal_shares), SharedResource(equal_shares), SharedResource(cores)]
        self._events: list[tuple[float, int, int]] = []
        """Heap of (time, resource, process). A resource knows its process itself, and its outdated events are
        skipped."""

        self._remaining: list[list[StageTime]] = [[] for _ in range(processes)]
        """Stages that each process has still to do, the next one last."""
        self._next_batch = [number % self._per_rank for number in range(processes)]
        """The batch that each worker makes or will make next: all its earlier ones are made."""
        self._idle = [True] * processes
        self._received = [0] * group.ranks
        """Number of batches that each loop has received."""
        self._waiting = [False] * group.ranks
        self._since_s = [0.0] * group.ranks
        """When each loop requested its batch; after its step, when the step ended."""
        self._waited_s = [0.0] * group.ranks
        self._done_ranks = 0
        """Number of ranks that have ended the current step."""
        self.ends_s: list[float] = []
        """When each step ended for all ranks."""
        self.data_s: list[float] = []
        """Seconds, by step, that the slowest rank waited for its batch."""
        self.others_s: list[float] = []
        """Seconds, by step, that all ranks together waited for the slowest one."""

    def run(self) -> None:
        """Simulate until the last step ends."""
        for rank in range(self._group.ranks):
            for worker in range(self._group.workers):
                self._begin_batch(rank, worker, 0.0)
        self._begin_steps(0.0)
        while len(self.ends_s) < self._steps:
            now, resource, process = heappop(self._events)
            if resource != TIMER:
                shared = self._resources[resource]
                if shared.next_done_s != now:
                    continue
                process = shared.leave()
                self._schedule(resource)
            self._proceed(process, now)

    def _schedule(self, resource: int) -> None:
        if (when := self._resources[resource].next_done_s) < inf:
            heappush(self._events, (when, resource, 0))

    # -- all processes -------------------------------------------------------------------------------------------

    def _proceed(self, process: int, now: float) -> None:
        """Begin the next stage of a process, or end its batch or step."""
        if self._remaining[process]:
            stage, seconds = self._remaining[process].pop()
            self._enter(process, stage, seconds, now)
            return
        rank, worker = divmod(process, self._per_rank)
        if worker == self._group.workers:
            self._end_step(rank, now)
        else:
            self._end_batch(rank, worker, now)

    def _enter(self, process: int, stage: int, seconds: float, now: float) -> None:
        if stage == LATENCY:
            heappush(self._events, (now + seconds, TIMER, process))
            return
        rank, worker = divmod(process, self._per_rank)
        node = rank // self._group.ranks_per_node
        resource = 0 if stage == STORE else 1 + node * len(NODE_STAGES) + stage - NETWORK
        shared = self._resources[resource]
        if stage == CPU and worker == self._group.workers:
            seconds *= self._pool.wake_up_slowdown(len(shared))  # the loop stays on one core
        shared.enter(now, seconds, process)
        self._schedule(resource)

    def _stages_of(self, rank: int, batch: int) -> list[StageTime]:
        """Return the stages that take time, the first one last; each batch begins at another stage
        (event_simulator.py)."""
        drawn = self._drawn[rank][batch]
        stages = [(stage, seconds) for stage in _REVERSED_STAGES if (seconds := self._work[stage][drawn]) > 0]
        return rotate_stages(stages, (batch + rank) * GOLDEN_RATIO % 1.0) if len(stages) > 1 else stages

    # -- workers -------------------------------------------------------------------------------------------------

    def _begin_batch(self, rank: int, worker: int, now: float) -> None:
        """Begin the worker's next batch, if it is idle and the batch is assigned already."""
        process = rank * self._per_rank + worker
        batch = self._next_batch[process]
        if self._idle[process] and batch < min(self._received[rank] + self._prefetched, len(self._drawn[rank])):
            self._idle[process] = False
            self._remaining[process] = self._stages_of(rank, batch)
            self._proceed(process, now)

    def _end_batch(self, rank: int, worker: int, now: float) -> None:
        process = rank * self._per_rank + worker
        self._next_batch[process] += self._group.workers
        self._idle[process] = True
        if self._waiting[rank]:
            self._receive_if_ready(rank, now)
        self._begin_batch(rank, worker, now)

    # -- training loops ------------------------------------------------------------------------------------------

    def _begin_steps(self, now: float) -> None:
        self._done_ranks = 0
        for rank in range(self._group.ranks):
            self._since_s[rank] = now
            self._waiting[rank] = True
            self._receive_if_ready(rank, now)

    def _receive_if_ready(self, rank: int, now: float) -> None:
        """Receive the next batch and begin the step, if the batch is made."""
        batch, workers = self._received[rank], self._group.workers
        if workers and self._next_batch[rank * self._per_rank + batch % workers] <= batch:
            return
        self._waiting[rank] = False
        self._received[rank] += 1
        self._waited_s[rank] = now - self._since_s[rank]
        step_s, cpu_s = self._step_s[rank][batch], self._step_cpu_s[rank][batch]
        stages: list[StageTime] = [(LATENCY, step_s - cpu_s)]
        if cpu_s > 0:
            stages.append((CPU, cpu_s))
        loop = rank * self._per_rank + workers
        self._remaining[loop] = stages if workers else [*stages, *self._stages_of(rank, batch)]
        if workers:
            self._begin_batch(rank, batch % workers, now)
        self._proceed(loop, now)

    def _end_step(self, rank: int, now: float) -> None:
        """End the step of a rank; when the last rank ends it, all ranks begin the next one."""
        self._done_ranks += 1
        self._since_s[rank] = now
        if self._done_ranks == self._group.ranks:
            self.data_s.append(self._waited_s[rank])
            self.others_s.append(sum(now - done_s for done_s in self._since_s))
            self.ends_s.append(now)
            if len(self.ends_s) < self._steps:
                self._begin_steps(now)
