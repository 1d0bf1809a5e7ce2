"""One pass over an AdaptiveLoader: batches of one lane after the other, in the sampler's order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from torch.utils.data import DataLoader

from penstock.core.cgroups import free_bytes
from penstock.tuner.adaptive.controller import Decision
from penstock.tuner.adaptive.inner_loaders import InnerLoader, InnerLoaderFactory, OrderCursor
from penstock.tuner.loader_copy import is_iterable
from penstock.tuner.measure import shut_down
from penstock.tuner.result import Setting
from penstock.tuner.trials import one_line
from penstock.tuner.worker_cost import size_bytes

IN_WORKER = "in DataLoader worker process"
"""torch's words in an error that the dataset itself raised: its worker is well."""
DEATH_S = 1.0
"""Between a connection that breaks off and the end of the process behind it."""


class AdaptiveEpoch:
    """An iterator like torch's.

    To change the setting, the lane gets no more indices and a new one gets the next: its workers start while those of
    the old finish what they have. So the order is kept, and no batch is made twice or left out.
    """

    def __init__(
        self, loader: DataLoader[Any], workshop: InnerLoaderFactory, adopted: Callable[[Setting], None]
    ) -> None:
        """`adopted` is told of every setting that takes force."""
        self._loader = loader
        self._workshop = workshop
        self._adopted = adopted
        sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._cursor = None if is_iterable(loader) else OrderCursor(sampler)
        first = workshop.begin(loader, self._cursor)
        adopted(first.setting)
        self._lanes = deque([first])
        self._seed = first.seed
        self._later: Setting | None = None
        """To begin with when the lane that is on has ended."""
        self._got_s: float | None = None
        self._over = False
        """Nothing is decided any more in this pass."""

    def __iter__(self) -> AdaptiveEpoch:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        asked_s = self._workshop.clock.now()
        try:
            batch = self._deliver()
        except Exception as error:
            self._raise_if_dead(error)
            raise
        now_s = self._workshop.clock.now()
        lane = self._lanes[0]
        lane.delivered += 1
        if self._got_s is not None and lane.warm and not self._changing:
            self._workshop.window.note(now_s - asked_s, asked_s - self._got_s)
        self._got_s = now_s
        if not self._changing and not self._over and self._workshop.window.full(lane.setting.workers):
            self._decide(lane, batch)
            self._got_s = self._workshop.clock.now()
        return batch

    @property
    def _changing(self) -> bool:
        return len(self._lanes) > 1 or self._later is not None

    def _deliver(self) -> Any:
        while self._lanes:
            lane = self._lanes[0]
            try:
                return next(lane.iterator)
            except StopIteration:
                self._lanes.popleft()
            if lane.share is not None and lane.share.closed:
                shut_down(lane.iterator)  # workers that would stay for the next epoch have no part in it
                self._begin_later()
        raise StopIteration

    def _raise_if_dead(self, error: Exception) -> None:
        """Where a worker died: end the others too, and say it as torch says it.

        torch tells of a dead worker from a signal handler, in the middle of whatever the main thread does, as long as
        its iterator lives. A batch on its way may break off before the death can be seen: then it is waited for.
        """
        workers = [worker for lane in self._lanes for worker in lane.workers]
        if isinstance(error, OSError | EOFError) and IN_WORKER not in str(error):
            _wait_for_end(workers)
        dead = [worker.pid for worker in workers if worker.exitcode]
        if not dead:
            return
        for lane in self._lanes:
            with suppress(RuntimeError):
                shut_down(lane.iterator)
        self._lanes.clear()
        self._workshop.forget()
        pids = ", ".join(map(str, dead))
        raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from error

    # -- changes ---------------------------------------------------------------------------------------------------

    def _decide(self, lane: InnerLoader, batch: Any) -> None:
        workshop = self._workshop
        seen = workshop.window.seen(
            batch_bytes=size_bytes(batch), worker_bytes=lane.worker_bytes(), free_bytes=free_bytes()
        )
        workshop.window.reset()
        decision = workshop.controller.decide(seen)
        if decision is None:
            return
        workshop.say(lane.setting, decision)
        if decision.setting == lane.setting:
            return
        if lane.share is None:
            self._over = True  # an iterable dataset is in the middle of its samples: from the next pass on
        else:
            lane.share.close()
            self._change(lane, decision)

    def _change(self, lane: InnerLoader, decision: Decision) -> None:
        if not decision.overlap:
            self._later = decision.setting
            return
        try:
            self._start(decision.setting)
        except Exception as error:
            self._raise_if_dead(error)  # it may not be the new lane that failed
            assert lane.share is not None
            lane.share.reopen()
            self._workshop.say(decision.setting, self._workshop.controller.refused(one_line(error)))

    def _begin_later(self) -> None:
        setting, self._later = self._later, None
        if setting is None:
            return
        try:
            self._start(setting)
        except Exception as error:
            decision = self._workshop.controller.refused(one_line(error))
            self._workshop.say(setting, decision)
            self._start(decision.setting)

    def _start(self, setting: Setting) -> None:
        self._lanes.append(self._workshop.lane(self._loader, setting, self._cursor, self._seed))
        self._adopted(setting)


def _wait_for_end(workers: list[Any]) -> None:
    """Of one of them. Its files are closed a moment before there is an exit code: so it is joined, too."""
    with suppress(RuntimeError):  # torch's signal handler: then it has ended
        ended = wait([worker.sentinel for worker in workers], DEATH_S)
        for worker in workers:
            if worker.sentinel in ended:
                worker.join(DEATH_S)
