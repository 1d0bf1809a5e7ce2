"""The event-driven simulator, for workers that slow each other down; each shared resource has a clock of its own.

A real batch waits, reads and computes sample by sample. If each batch were simulated as one wait, one read and one
computation in a fixed order, equal workers would all read at once and then all compute at once, which real workers do
not stay in step to do. So each batch begins at another point in the cycle of its stages. The simulated rate is then
within a few per cent of the rate with single samples, for one more event per batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import ceil, inf

import numpy as np

from penstock.model.simulation_data import CPU, IO, LATENCY, LOCK, STAGES, BatchCosts, SimulatedRun, WorkerPool


class SharedResource:
    """A resource that serves all its clients at once, at a speed that depends on their number.

    Its own clock counts the seconds of service that each client received, so a client's remaining service needs no
    update when others enter or leave.
    """

    __slots__ = ("_clients", "_served_s", "_speed", "_speeds", "_updated_s", "next_done_s")

    def __init__(self, speeds: Sequence[float]) -> None:
        """`speeds` holds the speed for each client with one, two… clients."""
        self._speeds = speeds
        self._clients: list[tuple[float, int]] = []
        """Heap of (service at which the client is done, client)."""
        self._served_s = self._updated_s = 0.0
        self._speed = 1.0
        self.next_done_s = inf
        """When the next client is done, if no other enters."""

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._clients)

    def enter(self, now: float, service_s: float, client: int) -> None:
        """Add a client that needs so many seconds of service."""
        self._served_s += (now - self._updated_s) * self._speed
        heappush(self._clients, (self._served_s + service_s, client))
        self._update(now)

    def leave(self) -> int:
        """Remove and return the client that is done at `next_done_s`."""
        self._served_s, client = heappop(self._clients)
        self._update(self.next_done_s)
        return client

    def _update(self, now: float) -> None:
        self._updated_s = now
        if not self._clients:
            self._served_s, self.next_done_s = 0.0, inf
            return
        self._speed = self._speeds[len(self._clients) - 1]
        # By rounding, the sum of many small services may exceed what the first client needs.
        self.next_done_s = now + max(0.0, self._clients[0][0] - self._served_s) / self._speed


_REVERSED_STAGES = tuple(reversed(range(len(STAGES))))
GOLDEN_RATIO = 0.6180339887498949
"""The fractional parts of its multiples are spread evenly between 0 and 1, however many there are."""
LOOP = -1
"""Number of the training loop among the numbers of the workers."""

StageTime = tuple[int, float]
"""(stage, seconds)."""


class EventSimulation:
    """One simulated run; its state is what each worker and the training loop do at the current time."""

    def __init__(self, batches: BatchCosts, pool: WorkerPool, steps: int) -> None:
        self._pool, self._count, self._steps = pool, len(batches), steps
        self._work = batches.work.tolist()
        lag = pool.lag if pool.lag.shape[1] else np.zeros((len(STAGES), pool.workers))
        self._lag = lag.tolist()
        self._receive_s, self._step_s = batches.receive_s.tolist(), batches.step_s.tolist()
        self._step_cpu_s = batches.step_cpu_s.tolist()

        self._helpers = ceil(pool.step_threads - 1)
        """Threads of the step besides the loop's own."""
        self._loop_parts = 0
        """Threads of the loop that compute."""
        numbers = range(1, pool.workers + 2 + self._helpers)  # all workers, and the loop with its threads
        self._cores = SharedResource([pool.core_share(number) for number in numbers])
        self._storage = SharedResource([pool.storage(number) / number for number in numbers])
        self._timers: list[tuple[float, int]] = []
        """Heap of (time, worker or LOOP)."""
        self._lock: deque[tuple[int, float]] = deque()
        """(worker, seconds) of the holder of the lock, then of those that wait for it."""

        self._tasks: list[deque[int]] = [deque() for _ in range(pool.workers)]
        self._batch_in_work = [-1] * pool.workers
        self._stage = [LATENCY] * pool.workers
        self._remaining: list[list[StageTime]] = [[] for _ in range(pool.workers)]
        """Stages that each worker has still to do for its batch, the next one last."""
        self._assigned = 0
        """Number of batches that were assigned to workers."""

        self._finished_s = [inf] * self._count
        self._maker = [-1] * self._count
        self._ready: deque[int] = deque()
        """Batches in the order in which they were made; with in_order=False the loop receives them in this order."""
        self._receiving = -1
        self._when_loop_done: Callable[[float], None] = self._request
        """Called when the timer or the computation of the loop ends."""
        self._waiting = False
        self._requested_s: list[float] = []
        self._received_s: list[float] = []
        self._batches: list[int] = []

    def run(self) -> SimulatedRun:
        """Simulate until the last step ends."""
        for task in range(min(self._pool.outstanding_tasks, self._count)):
            self._assign(task % self._pool.workers, 0.0)
        self._request(0.0)
        now, cores, storage, timers = 0.0, self._cores, self._storage, self._timers
        while not (self._waiting and len(self._received_s) == self._steps):
            now = min(cores.next_done_s, storage.next_done_s, timers[0][0] if timers else inf)
            if timers and timers[0][0] <= now:
                client = heappop(timers)[1]
            elif cores.next_done_s <= now:
                client = cores.leave()
                if client == LOOP:
                    self._loop_parts -= 1
                    if self._loop_parts:
                        continue
            else:
                client = storage.leave()
            if client == LOOP:
                self._when_loop_done(now)
            else:
                self._end_stage(client, now)
        return SimulatedRun(
            np.array(self._requested_s[: self._steps]),
            np.array(self._received_s),
            np.array(self._batches),
            np.array(self._finished_s),
            np.array(self._maker),
            now,
        )

    # -- workers -----------------------------------------------------------------------------------------------

    def _assign(self, worker: int, now: float) -> None:
        """Assign the next batch to a worker."""
        if self._assigned == self._count:
            return
        self._tasks[worker].append(self._assigned)
        self._assigned += 1
        self._begin_tasks(worker, now)

    def _begin_tasks(self, worker: int, now: float) -> None:
        """Begin the next task of an idle worker; tasks without work end at once, and the one after begins."""
        tasks = self._tasks[worker]
        while tasks and self._batch_in_work[worker] < 0:
            self._batch_in_work[worker] = tasks.popleft()
            self._remaining[worker] = self._stages_of(self._batch_in_work[worker], worker)
            self._begin_stage(worker, now)

    def _stages_of(self, batch: int, worker: int) -> list[StageTime]:
        """Return the stages that take time, the first one last."""
        work, lag = self._work, self._lag
        stages = [(s, seconds) for s in _REVERSED_STAGES if (seconds := work[s][batch] + lag[s][worker]) > 0]
        return rotate_stages(stages, batch * GOLDEN_RATIO % 1.0) if len(stages) > 1 else stages

    def _begin_stage(self, worker: int, now: float) -> None:
        """Begin the next stage of the worker's batch; if there is none, the batch is made."""
        if self._remaining[worker]:
            self._stage[worker], seconds = self._remaining[worker].pop()
            self._enter(worker, seconds, now)
            return
        batch = self._batch_in_work[worker]
        self._finished_s[batch], self._maker[batch], self._batch_in_work[worker] = now, worker, -1
        self._ready.append(batch)
        if self._waiting:
            self._receive_if_ready(now)

    def _enter(self, worker: int, seconds: float, now: float) -> None:
        stage = self._stage[worker]
        if stage == CPU:
            self._cores.enter(now, seconds, worker)
        elif stage == IO:
            self._storage.enter(now, seconds, worker)
        elif stage == LATENCY:
            heappush(self._timers, (now + seconds, worker))
        else:
            self._lock.append((worker, seconds))
            if len(self._lock) == 1:
                heappush(self._timers, (now + seconds, worker))

    def _end_stage(self, worker: int, now: float) -> None:
        if self._stage[worker] == LOCK:
            self._lock.popleft()
            if self._lock:
                next_holder, seconds = self._lock[0]
                heappush(self._timers, (now + seconds, next_holder))
        self._begin_stage(worker, now)
        self._begin_tasks(worker, now)

    # -- the training loop -------------------------------------------------------------------------------------

    def _request(self, now: float) -> None:
        self._requested_s.append(now)
        self._waiting = True
        if len(self._received_s) < self._steps:
            self._receive_if_ready(now)

    def _receive_if_ready(self, now: float) -> None:
        """Begin to receive the next batch if it is made."""
        if self._pool.in_order:
            batch = len(self._received_s)
            if self._finished_s[batch] > now:
                return
        elif self._ready:
            batch = self._ready.popleft()
        else:
            return
        self._waiting, self._receiving = False, batch
        if self._receive_s[batch] > 0:
            self._compute(self._receive_s[batch], self._begin_step, now)
        else:
            self._begin_step(now)

    def _begin_step(self, now: float) -> None:
        step = len(self._received_s)
        self._received_s.append(now)
        self._batches.append(self._receiving)
        self._assign(self._maker[self._receiving], now)
        if self._step_cpu_s[step] > 0:
            for _ in range(self._helpers):
                share = (self._pool.step_threads - 1) / self._helpers
                self._loop_parts += 1
                self._cores.enter(now, self._step_cpu_s[step] * share, LOOP)
            self._compute(self._step_cpu_s[step], self._wait_for_device, now)
        else:
            self._set_loop_timer(self._step_s[step], self._request, now)

    def _wait_for_device(self, now: float) -> None:
        """Spend the part of the step that needs no core."""
        step = len(self._received_s) - 1
        self._set_loop_timer(self._step_s[step] - self._step_cpu_s[step], self._request, now)

    def _compute(self, seconds: float, then: Callable[[float], None], now: float) -> None:
        """Let the loop compute: it stays on one of the cores and shares it with the processes there."""
        self._when_loop_done = then
        others = len(self._cores) - self._loop_parts + self._pool.competitors
        self._loop_parts += 1
        self._cores.enter(now, seconds * self._pool.wake_up_slowdown(others, self._loop_parts), LOOP)

    def _set_loop_timer(self, seconds: float, then: Callable[[float], None], now: float) -> None:
        self._when_loop_done = then
        heappush(self._timers, (now + seconds, LOOP))


def rotate_stages(stages: list[StageTime], share: float) -> list[StageTime]:
    """Return the same stages begun after this share of their time; the share before it comes at the end.

    In both lists the first stage is the last element. The stage at the split point occurs twice.
    """
    rest = stages.copy()
    skip_s = share * sum(seconds for _, seconds in stages)
    moved: list[StageTime] = []
    while len(rest) > 1 and skip_s >= rest[-1][1]:
        moved.append(rest.pop())
        skip_s -= moved[-1][1]
    stage, seconds = rest.pop()
    skip_s = min(skip_s, seconds)
    if skip_s > 0:
        moved.append((stage, skip_s))
    return [*reversed(moved), *rest, (stage, seconds - skip_s)]
