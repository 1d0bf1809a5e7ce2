"""Many ranks in step: each has a loader of its own, and at the end of every step all wait for the slowest.

A rank's loader works as in simulate.py, in order. What a batch needs it gets at one place after the other: it waits
alone, at the store that all ranks share, on the network and in the cache of its node, on the cores of its node. Each
rank draws its batches and its steps anew from those it is given: ranks differ as much as batches of one rank do.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np

from penstock.errors import SettingError
from penstock.model.event_simulator import GOLDEN, SharedResource, Turn, turned
from penstock.model.simulation_input import Floats, WorkerPool

PLACES = ("alone_s", "store_s", "network_s", "cache_s", "cpu_s")
"""Where a batch is made, in this order."""
ALONE, STORE, NETWORK, CACHE, CPU = range(len(PLACES))
BACKWARDS = tuple(reversed(range(len(PLACES))))
OF_NODE = (NETWORK, CACHE, CPU)
TIMER = -1
"""Among the numbers of resources: nobody else's."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RankGroup:
    """Equal ranks on equal nodes, and what each batch needs: seconds as they would be with nobody else there."""

    nodes: int
    ranks_per_node: int
    workers: int
    """Of each rank; 0: its loop makes the batches itself."""
    prefetch: int = 2
    cores: float = inf
    """Of each node."""
    work: Floats
    """A row per place (see PLACES), a column per batch that ranks draw from."""
    step_s: Floats
    """Of the loop, taking a batch over included; drawn independently of the batches."""
    step_cpu_s: Floats
    """Of it, on a core of the node."""

    def __post_init__(self) -> None:
        if min(self.nodes, self.ranks_per_node) < 1:
            raise SettingError(f"{self.nodes} nodes of {self.ranks_per_node} ranks hold nobody")
        if self.work.shape[0] != len(PLACES) or not self.work.shape[1] or len(self.step_s) != len(self.step_cpu_s):
            raise SettingError("ranks need batches with a row per place, and steps with their computing")

    @property
    def number(self) -> int:
        """Of all nodes together."""
        return self.nodes * self.ranks_per_node

    def crew(self) -> WorkerPool:
        """One rank's, with the node's cores."""
        return WorkerPool(self.workers, self.prefetch, cores=self.cores)


@dataclass(frozen=True, slots=True)
class SynchronousRun:
    """What became of them, after the first steps."""

    steps_s: float
    """Steps per second of all together: every rank makes one in each."""
    data_share: float
    """Of the time, in which the rank that all waited for in the end waited for its batch."""
    others_share: float
    """Of the ranks' time, waiting for slower ranks at the end of a step, whatever these did."""


def simulate_ranks(crowd: RankGroup, steps: int, warm_up: int, seed: int = 0) -> SynchronousRun:
    """So many steps after `warm_up` others, in which what loaders have in stock at the start is used up."""
    if steps < 1 or warm_up < 1:
        raise SettingError(f"{steps} steps after {warm_up} say nothing")
    run = _RankSimulation(crowd, warm_up + steps, seed)
    run.go()
    began_s = run.ends_s[warm_up - 1]
    seconds = run.ends_s[-1] - began_s
    if seconds <= 0:
        return SynchronousRun(inf, 0.0, 0.0)
    data_s, others_s = sum(run.data_s[warm_up:]), sum(run.others_s[warm_up:])
    return SynchronousRun(steps / seconds, data_s / seconds, others_s / seconds / crowd.number)


class _RankSimulation:
    """From event to event. Everybody has a number: rank × (W + 1) + worker, the loop after the workers."""

    def __init__(self, crowd: RankGroup, steps: int, seed: int) -> None:
        self._crowd, self._steps, self._crew = crowd, steps, crowd.crew()
        random = np.random.default_rng(seed)
        self._seats, self._ahead = crowd.workers + 1, max(1, self._crew.tasks)
        self._which = random.integers(crowd.work.shape[1], size=(crowd.number, steps + self._ahead)).tolist()
        self._work = crowd.work.tolist()
        drawn = random.integers(len(crowd.step_s), size=(crowd.number, steps))
        self._step_s, self._step_cpu_s = crowd.step_s[drawn].tolist(), crowd.step_cpu_s[drawn].tolist()

        everybody = range(1, crowd.number * self._seats + 1)
        alone = [1 / number for number in everybody]
        on_node = range(1, crowd.ranks_per_node * self._seats + 1)
        cores = [self._crew.core_share(number) for number in on_node]
        self._resources = [SharedResource(alone)]
        for _ in range(crowd.nodes):
            self._resources += [SharedResource(alone), SharedResource(alone), SharedResource(cores)]
        self._agenda: list[tuple[float, int, int]] = []
        """(when, resource, who); who is known by the resource where it is one. What has changed since is skipped."""

        self._turns: list[list[Turn]] = [[] for _ in everybody]
        """What each has still to do, the next last."""
        self._next = [number % self._seats for number in range(crowd.number * self._seats)]
        """The batch that each worker makes, or will make next: all its earlier ones are made."""
        self._idle = [True] * (crowd.number * self._seats)
        self._taken = [0] * crowd.number
        """Batches that each loop has taken."""
        self._waiting = [False] * crowd.number
        self._asked_s = [0.0] * crowd.number
        """When each loop asked for its batch; once its step is over, when that was."""
        self._waited_s = [0.0] * crowd.number
        self._arrived = 0
        self.ends_s: list[float] = []
        """When each step was over for all."""
        self.data_s: list[float] = []
        """By step: what the last rank waited for its batch."""
        self.others_s: list[float] = []
        """By step, of all ranks together."""

    def go(self) -> None:
        """To the end of the last step."""
        for rank in range(self._crowd.number):
            for worker in range(self._crowd.workers):
                self._begin(rank, worker, 0.0)
        self._ask_all(0.0)
        while len(self.ends_s) < self._steps:
            now, resource, who = heappop(self._agenda)
            if resource != TIMER:
                shared = self._resources[resource]
                if shared.next_s != now:
                    continue
                who = shared.leave()
                self._note(resource)
            self._proceed(who, now)

    def _note(self, resource: int) -> None:
        if (when := self._resources[resource].next_s) < inf:
            heappush(self._agenda, (when, resource, 0))

    # -- anybody -------------------------------------------------------------------------------------------------

    def _proceed(self, who: int, now: float) -> None:
        """To the next place, or to the end of what was to do."""
        if self._turns[who]:
            place, seconds = self._turns[who].pop()
            self._enter(who, place, seconds, now)
            return
        rank, seat = divmod(who, self._seats)
        if seat == self._crowd.workers:
            self._stepped(rank, now)
        else:
            self._made(rank, seat, now)

    def _enter(self, who: int, place: int, seconds: float, now: float) -> None:
        if place == ALONE:
            heappush(self._agenda, (now + seconds, TIMER, who))
            return
        rank, seat = divmod(who, self._seats)
        resource = 0 if place == STORE else 1 + rank // self._crowd.ranks_per_node * len(OF_NODE) + place - NETWORK
        shared = self._resources[resource]
        if place == CPU and seat == self._crowd.workers:  # the loop: it stays on one core, see Crew.crowding
            seconds *= self._crew.crowding(len(shared))
        shared.enter(now, seconds, who)
        self._note(resource)

    def _parts_of(self, rank: int, batch: int) -> list[Turn]:
        """Last first, each batch begun at another place: see events.py."""
        which = self._which[rank][batch]
        parts = [(place, seconds) for place in BACKWARDS if (seconds := self._work[place][which]) > 0]
        return turned(parts, (batch + rank) * GOLDEN % 1.0) if len(parts) > 1 else parts

    # -- workers -------------------------------------------------------------------------------------------------

    def _begin(self, rank: int, worker: int, now: float) -> None:
        """Its next batch, if it is given out already."""
        who = rank * self._seats + worker
        batch = self._next[who]
        if self._idle[who] and batch < min(self._taken[rank] + self._ahead, len(self._which[rank])):
            self._idle[who] = False
            self._turns[who] = self._parts_of(rank, batch)
            self._proceed(who, now)

    def _made(self, rank: int, worker: int, now: float) -> None:
        who = rank * self._seats + worker
        self._next[who] += self._crowd.workers
        self._idle[who] = True
        if self._waiting[rank]:
            self._look(rank, now)
        self._begin(rank, worker, now)

    # -- loops ---------------------------------------------------------------------------------------------------

    def _ask_all(self, now: float) -> None:
        self._arrived = 0
        for rank in range(self._crowd.number):
            self._asked_s[rank] = now
            self._waiting[rank] = True
            self._look(rank, now)

    def _look(self, rank: int, now: float) -> None:
        """Take the batch whose turn it is, if it is there."""
        batch, workers = self._taken[rank], self._crowd.workers
        if workers and self._next[rank * self._seats + batch % workers] <= batch:
            return
        self._waiting[rank] = False
        self._taken[rank] += 1
        self._waited_s[rank] = now - self._asked_s[rank]
        step_s, cpu_s = self._step_s[rank][batch], self._step_cpu_s[rank][batch]
        turns: list[Turn] = [(ALONE, step_s - cpu_s)]
        if cpu_s > 0:
            turns.append((CPU, cpu_s))
        loop = rank * self._seats + workers
        self._turns[loop] = turns if workers else [*turns, *self._parts_of(rank, batch)]
        if workers:
            self._begin(rank, batch % workers, now)
        self._proceed(loop, now)

    def _stepped(self, rank: int, now: float) -> None:
        """The last to arrive opens the next step for all."""
        self._arrived += 1
        self._asked_s[rank] = now
        if self._arrived == self._crowd.number:
            self.data_s.append(self._waited_s[rank])
            self.others_s.append(sum(now - arrived_s for arrived_s in self._asked_s))
            self.ends_s.append(now)
            if len(self.ends_s) < self._steps:
                self._ask_all(now)
