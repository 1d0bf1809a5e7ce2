"""The simulator where workers are in each other's way: from event to event, each resource with a clock of its own.

A real batch waits, reads and computes sample by sample. Taken as one wait, one read and one computation in a fixed
order, equal workers would all read at once and then all compute at once, which no real crew keeps up. So each batch
begins somewhere else in the round of its parts: a rate within some per cent of what single samples give, for one event
more per batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from penstock.model.simulation_input import ALONE, CPU, IO, PARTS, SERIAL, BatchCosts, SimulatedRun, WorkerPool


class SharedResource:
    """A resource that serves all who are there at once, at a speed that depends on how many there are.

    Its own clock counts the seconds of service that each of them got, so what somebody is still owed needs no
    touching when others come and go.
    """

    __slots__ = ("_jobs", "_served", "_speed", "_speeds", "_then", "next_s")

    def __init__(self, speeds: Sequence[float]) -> None:
        """`speeds` are those that each gets with one, two… of them there."""
        self._speeds = speeds
        self._jobs: list[tuple[float, int]] = []
        self._served = self._then = 0.0
        self._speed = 1.0
        self.next_s = inf
        """When the next one is done, if nobody comes."""

    def __len__(self) -> int:
        """How many are there."""
        return len(self._jobs)

    def enter(self, now: float, work_s: float, who: int) -> None:
        """Stay until served for so long."""
        self._served += (now - self._then) * self._speed
        heappush(self._jobs, (self._served + work_s, who))
        self._plan(now)

    def leave(self) -> int:
        """The one who is done, at `next_s`."""
        self._served, who = heappop(self._jobs)
        self._plan(self.next_s)
        return who

    def _plan(self, now: float) -> None:
        self._then = now
        if not self._jobs:
            self._served, self.next_s = 0.0, inf
            return
        self._speed = self._speeds[len(self._jobs) - 1]
        # The sum of many small services may be a hair beyond what the first was owed.
        self.next_s = now + max(0.0, self._jobs[0][0] - self._served) / self._speed


BACKWARDS = tuple(reversed(range(len(PARTS))))
GOLDEN = 0.6180339887498949
"""Its multiples, less their whole parts, lie evenly between 0 and 1 however many there are."""
LOOP = -1
"""Among the numbers of workers."""

Turn = tuple[int, float]
"""At a part of the work, for so many seconds."""


class EventSimulation:
    """One run; the state is what everybody is doing now."""

    def __init__(self, batches: BatchCosts, crew: WorkerPool, steps: int) -> None:
        self._crew, self._count, self._steps = crew, len(batches), steps
        self._work = batches.work.tolist()
        lag = crew.lag if crew.lag.shape[1] else np.zeros((len(PARTS), crew.workers))
        self._lag = lag.tolist()
        self._handover_s, self._step_s = batches.handover_s.tolist(), batches.step_s.tolist()
        self._step_cpu_s = batches.step_cpu_s.tolist()

        numbers = range(1, crew.workers + 2)  # all of them, and the loop
        self._cores = SharedResource([crew.core_share(number) for number in numbers])
        self._storage = SharedResource([crew.storage(number) / number for number in numbers])
        self._timers: list[tuple[float, int]] = []
        self._lock: deque[tuple[int, float]] = deque()
        """Who holds it, then who waits for it."""

        self._tasks: list[deque[int]] = [deque() for _ in range(crew.workers)]
        self._making = [-1] * crew.workers
        self._part = [ALONE] * crew.workers
        self._plan: list[list[Turn]] = [[] for _ in range(crew.workers)]
        self._given = 0

        self._finished_s = [inf] * self._count
        self._maker = [-1] * self._count
        self._arrived: deque[int] = deque()
        """Made and not yet taken, in the order of making: what in_order=False takes from."""
        self._taking = -1
        self._then: Callable[[float], None] = self._ask
        """What the loop does when its timer or its computing is over."""
        self._waiting = False
        self._asked_s: list[float] = []
        self._yielded_s: list[float] = []
        self._batch: list[int] = []

    def run(self) -> SimulatedRun:
        """To the end of the last step."""
        for at in range(min(self._crew.tasks, self._count)):
            self._give(at % self._crew.workers, 0.0)
        self._ask(0.0)
        now, cores, storage, timers = 0.0, self._cores, self._storage, self._timers
        while not (self._waiting and len(self._yielded_s) == self._steps):
            now = min(cores.next_s, storage.next_s, timers[0][0] if timers else inf)
            if timers and timers[0][0] <= now:
                who = heappop(timers)[1]
            elif cores.next_s <= now:
                who = cores.leave()
            else:
                who = storage.leave()
            if who == LOOP:
                self._then(now)
            else:
                self._part_done(who, now)
        return SimulatedRun(
            np.array(self._asked_s[: self._steps]),
            np.array(self._yielded_s),
            np.array(self._batch),
            np.array(self._finished_s),
            np.array(self._maker),
            now,
        )

    # -- workers -----------------------------------------------------------------------------------------------

    def _give(self, who: int, now: float) -> None:
        """The next task to this worker."""
        if self._given == self._count:
            return
        self._tasks[who].append(self._given)
        self._given += 1
        self._next_task(who, now)

    def _next_task(self, who: int, now: float) -> None:
        """If it is idle and has one; a task without work is done at once."""
        tasks = self._tasks[who]
        while tasks and self._making[who] < 0:
            self._making[who] = tasks.popleft()
            self._plan[who] = self._parts_of(self._making[who], who)
            self._proceed(who, now)

    def _parts_of(self, batch: int, who: int) -> list[Turn]:
        """Last first."""
        work, lag = self._work, self._lag
        parts = [(part, seconds) for part in BACKWARDS if (seconds := work[part][batch] + lag[part][who]) > 0]
        return turned(parts, batch * GOLDEN % 1.0) if len(parts) > 1 else parts

    def _proceed(self, who: int, now: float) -> None:
        """To the next part of its batch, or to its end."""
        if self._plan[who]:
            self._part[who], seconds = self._plan[who].pop()
            self._enter(who, seconds, now)
            return
        batch = self._making[who]
        self._finished_s[batch], self._maker[batch], self._making[who] = now, who, -1
        self._arrived.append(batch)
        if self._waiting:
            self._look(now)

    def _enter(self, who: int, seconds: float, now: float) -> None:
        part = self._part[who]
        if part == CPU:
            self._cores.enter(now, seconds, who)
        elif part == IO:
            self._storage.enter(now, seconds, who)
        elif part == ALONE:
            heappush(self._timers, (now + seconds, who))
        else:
            self._lock.append((who, seconds))
            if len(self._lock) == 1:
                heappush(self._timers, (now + seconds, who))

    def _part_done(self, who: int, now: float) -> None:
        if self._part[who] == SERIAL:
            self._lock.popleft()
            if self._lock:
                heir, held_s = self._lock[0]
                heappush(self._timers, (now + held_s, heir))
        self._proceed(who, now)
        self._next_task(who, now)

    # -- the loop ----------------------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        self._asked_s.append(now)
        self._waiting = True
        if len(self._yielded_s) < self._steps:
            self._look(now)

    def _look(self, now: float) -> None:
        """Take the batch whose turn it is, if it is there."""
        if self._crew.in_order:
            batch = len(self._yielded_s)
            if self._finished_s[batch] > now:
                return
        elif self._arrived:
            batch = self._arrived.popleft()
        else:
            return
        self._waiting, self._taking = False, batch
        if self._handover_s[batch] > 0:
            self._compute(self._handover_s[batch], self._got, now)
        else:
            self._got(now)

    def _got(self, now: float) -> None:
        step = len(self._yielded_s)
        self._yielded_s.append(now)
        self._batch.append(self._taking)
        self._give(self._maker[self._taking], now)
        computing_s = self._step_cpu_s[step]
        if computing_s > 0:
            self._compute(computing_s, self._computed, now)
        else:
            self._loop_for(self._step_s[step], self._ask, now)

    def _computed(self, now: float) -> None:
        step = len(self._yielded_s) - 1
        self._loop_for(self._step_s[step] - self._step_cpu_s[step], self._ask, now)

    def _compute(self, seconds: float, then: Callable[[float], None], now: float) -> None:
        """On the cores, for the loop: it stays on one of them and shares that with those who are there."""
        self._then = then
        others = len(self._cores) + self._crew.burners
        self._cores.enter(now, seconds * self._crew.crowding(others), LOOP)

    def _loop_for(self, seconds: float, then: Callable[[float], None], now: float) -> None:
        self._then = then
        heappush(self._timers, (now + seconds, LOOP))


def turned(parts: list[Turn], share: float) -> list[Turn]:
    """The same parts begun after this share of them, what lies before it coming last; both lists are last first."""
    ahead = parts.copy()
    skip_s = share * sum(seconds for _, seconds in parts)
    behind: list[Turn] = []
    while len(ahead) > 1 and skip_s >= ahead[-1][1]:
        behind.append(ahead.pop())
        skip_s -= behind[-1][1]
    part, seconds = ahead.pop()
    skip_s = min(skip_s, seconds)
    if skip_s > 0:
        behind.append((part, skip_s))
    return [*reversed(behind), *ahead, (part, seconds - skip_s)]
