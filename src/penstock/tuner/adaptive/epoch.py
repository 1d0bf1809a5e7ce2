"""One epoch of an AdaptiveLoader: batches of one inner loader after the other, in the order of the sampler."""

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
from penstock.tuner.measure import shut_down_workers
from penstock.tuner.result import WorkerSettings
from penstock.tuner.trials import error_line
from penstock.tuner.worker_cost import batch_size_bytes

WORKER_ERROR = "in DataLoader worker process"
"""Part of torch's message for an error that the dataset raised: the worker itself is alive."""
DEATH_S = 1.0
"""Time to wait between a broken connection and the end of the process behind it."""


class AdaptiveEpoch:
    """An iterator like torch's that can change its settings in the middle of an epoch.

    To change them, the inner loader gets no more indices and a new one gets the next: the new workers start while the
    old ones finish their batches. So the order is kept, and no batch is made twice or left out.
    """

    def __init__(
        self, loader: DataLoader[Any], factory: InnerLoaderFactory, on_settings: Callable[[WorkerSettings], None]
    ) -> None:
        """`on_settings` is called with all settings that come into force."""
        self._loader = loader
        self._factory = factory
        self._on_settings = on_settings
        sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._cursor = None if is_iterable(loader) else OrderCursor(sampler)
        first = factory.begin_epoch(loader, self._cursor)
        on_settings(first.setting)
        self._inner_loaders = deque([first])
        """The loader that delivers, and the one that follows it during a change."""
        self._seed = first.seed
        self._next_setting: WorkerSettings | None = None
        """Settings of a loader that is started when the present one has ended, because memory is short."""
        self._received_s: float | None = None
        self._decided = False
        """Whether no more decisions are made in this epoch."""

    def __iter__(self) -> AdaptiveEpoch:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        request_s = self._factory.clock.now()
        try:
            batch = self._next_batch()
        except Exception as error:
            self._raise_if_dead(error)
            raise
        now_s = self._factory.clock.now()
        inner = self._inner_loaders[0]
        inner.delivered += 1
        if self._received_s is not None and inner.is_warm and not self._is_changing:
            self._factory.window.add(now_s - request_s, request_s - self._received_s)
        self._received_s = now_s
        if not self._is_changing and not self._decided and self._factory.window.is_full(inner.setting.workers):
            self._decide(inner, batch)
            self._received_s = self._factory.clock.now()
        return batch

    @property
    def _is_changing(self) -> bool:
        return len(self._inner_loaders) > 1 or self._next_setting is not None

    def _next_batch(self) -> Any:
        while self._inner_loaders:
            inner = self._inner_loaders[0]
            try:
                return next(inner.iterator)
            except StopIteration:
                self._inner_loaders.popleft()
            if inner.share is not None and inner.share.closed:
                shut_down_workers(inner.iterator)  # persistent workers of replaced settings are not used again
                self._start_next_setting()
        raise StopIteration

    def _raise_if_dead(self, error: Exception) -> None:
        """If a worker has died, end the others too and raise an error with torch's message.

        torch reports a dead worker from a signal handler, at any point of the main thread, as long as its iterator
        exists. A batch that is being received may break off before the death can be seen, so it is waited for.
        """
        workers = [worker for inner in self._inner_loaders for worker in inner.workers]
        if isinstance(error, OSError | EOFError) and WORKER_ERROR not in str(error):
            _wait_for_death(workers)
        dead = [worker.pid for worker in workers if worker.exitcode]
        if not dead:
            return
        for inner in self._inner_loaders:
            with suppress(RuntimeError):
                shut_down_workers(inner.iterator)
        self._inner_loaders.clear()
        self._factory.discard_persistent()
        pids = ", ".join(map(str, dead))
        raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from error

    # -- changes ---------------------------------------------------------------------------------------------------

    def _decide(self, inner: InnerLoader, batch: Any) -> None:
        factory = self._factory
        stats = factory.window.stats(
            batch_bytes=batch_size_bytes(batch), worker_bytes=inner.worker_bytes(), free_bytes=free_bytes()
        )
        factory.window.reset()
        decision = factory.controller.decide(stats)
        if decision is None:
            return
        factory.log_decision(inner.setting, decision)
        if decision.setting == inner.setting:
            return
        if inner.share is None:
            self._decided = True  # an iterable dataset is in the middle of its samples: it changes in the next epoch
        else:
            inner.share.close()
            self._change(inner, decision)

    def _change(self, inner: InnerLoader, decision: Decision) -> None:
        if not decision.overlap:
            self._next_setting = decision.setting
            return
        try:
            self._start(decision.setting)
        except Exception as error:
            self._raise_if_dead(error)  # the loader that runs may have failed, not the new one
            assert inner.share is not None
            inner.share.reopen()
            self._factory.log_decision(decision.setting, self._factory.controller.refused(error_line(error)))

    def _start_next_setting(self) -> None:
        setting, self._next_setting = self._next_setting, None
        if setting is None:
            return
        try:
            self._start(setting)
        except Exception as error:
            decision = self._factory.controller.refused(error_line(error))
            self._factory.log_decision(setting, decision)
            self._start(decision.setting)

    def _start(self, setting: WorkerSettings) -> None:
        self._inner_loaders.append(self._factory.create(self._loader, setting, self._cursor, self._seed))
        self._on_settings(setting)


def _wait_for_death(workers: list[Any]) -> None:
    """Wait for the end of a worker. Its files are closed a moment before it has an exit code, so it is joined too."""
    with suppress(RuntimeError):  # raised by torch's signal handler: then a worker has ended
        ended = wait([worker.sentinel for worker in workers], DEATH_S)
        for worker in workers:
            if worker.sentinel in ended:
                worker.join(DEATH_S)
