"""Runs tasks on the nodes of a Ray cluster: `run_tasks`, with the cluster in the place of worker processes.

A worker or a node that dies costs its tasks only: Ray gives them to others, a few times. Each node must have this
version of Penstock and see the same files; one that does not is refused by name before it has done anything.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import deflate

from penstock import __version__
from penstock.errors import PenstockError, SettingError, StorageError, WorkerCrash
from penstock.shards.cluster.join import Cluster, HeadNode
from penstock.shards.task_pool import Result, Task, TaskOutcome, run_and_pickle, unpickle_outcome
from penstock.storage.local import LocalFile
from penstock.storage.object_store.url import is_remote

log = logging.getLogger("penstock")

RETRIES = 3
"""How often a task is given to another worker after the one that had it died."""
TASKS_PER_CORE = 2
"""Tasks handed out per core: the next one lies ready on its node while the answer to the last travels."""
POLL_INTERVAL_S = 5.0
"""How often we look whether there is still anybody to wait for."""
CANCEL_TIMEOUT_S = 10.0


@dataclass
class RayRunner:
    """A `Runner`. Paths in tasks must be absolute; nodes know nothing of our working directory."""

    cluster: Cluster
    shared_files: list[str] = field(default_factory=list)
    """Files in folders that every node must see as we do; may be added to until the first task runs."""
    retries: int = RETRIES
    node_wait_s: float = 60.0
    """How long we wait for a node when the cluster has none that can work: one may be on its way."""

    def __call__(
        self, work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None = None
    ) -> Iterator[TaskOutcome[Task, Result]]:
        """Results as they come, of no more than `workers` tasks at a time."""
        ray = self.cluster.ray
        order = _RayTaskContext(work, __version__, make_witness_files(self.shared_files))
        perform = ray.remote(num_cpus=1, max_retries=self.retries)(_run_on_node)
        head = HeadNode(self.cluster.address)
        waiting = iter(tasks)
        busy: dict[Any, Task] = {}
        most = 1
        try:
            while True:
                if head.is_reachable():
                    most = workers or TASKS_PER_CORE * max(1, self.cluster.cpus)
                for task in islice(waiting, max(0, most - len(busy))):
                    busy[perform.remote(order, task)] = task
                if not busy:
                    return
                for answered in self._answered(list(busy), head):
                    yield self._done(answered, busy.pop(answered), head)
        finally:
            self._cancel(list(busy))

    def _answered(self, busy: list[Any], head: HeadNode) -> list[Any]:
        """At least one of them; an error if there is nobody left to answer."""
        without_nodes_s = 0.0
        while True:
            ready: list[Any] = self.cluster.ray.wait(busy, timeout=POLL_INTERVAL_S)[0]
            if ready:
                return ready
            if not head.is_reachable():  # nobody else can say how many nodes there are
                continue
            without_nodes_s = 0.0 if self.cluster.cpus else without_nodes_s + POLL_INTERVAL_S
            if without_nodes_s >= self.node_wait_s:
                raise PenstockError(
                    "the cluster has no node left that can work",
                    stage="work",
                    advice="Run the same command again when it has: what is finished is kept.",
                )

    def _done(self, answered: Any, task: Task, head: HeadNode) -> TaskOutcome[Task, Any]:
        ray = self.cluster.ray
        try:
            reply: _RayReply = ray.get(answered)
        except ray.exceptions.RayTaskError as error:  # our own errors are answers: this one comes from before
            raise SettingError(
                f"a node could not begin: {_last_line(error)}",
                stage="work",
                advice=f"Install penstock {__version__} on every node of the cluster.",
            ) from None
        except ray.exceptions.RayError as error:
            head.wait_until_reachable()  # a task that went down with the head has killed nobody
            times = f"{self.retries + 1} times" if self.retries else "once"
            reason = f"its worker died, {times} over: {_first_line(error)}"
            return TaskOutcome(task, None, WorkerCrash(reason, stage="work"))
        if reply.refusal is not None:
            raise StorageError(reply.refusal, stage="work", advice=_NODE_ADVICE)
        for notice in reply.notices:
            log.warning("%s", notice)
        return unpickle_outcome(task, reply.pickled_outcome)

    def _cancel(self, busy: list[Any]) -> None:
        """Whoever goes on with the work must find nobody at it."""
        ray = self.cluster.ray
        with suppress(ray.exceptions.RayError):
            for answered in busy:
                ray.cancel(answered, force=True)
            if busy:
                ray.wait(busy, num_returns=len(busy), timeout=CANCEL_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class _RayTaskContext:
    """What is the same for all tasks, and what a node must fulfil to take them."""

    work: Callable[[Any], Any]
    version: str
    witnesses: tuple[WitnessFile, ...]

    def refusal(self) -> str | None:
        """Why this node cannot take part; None if it can."""
        node = platform.node()
        if self.version != __version__:
            return f"node {node} has penstock {__version__}, and this machine {self.version}"
        unseen = next((witness.path for witness in self.witnesses if not witness.is_same_here()), None)
        return None if unseen is None else f"node {node} does not see {unseen!r} as this machine does"


@dataclass(frozen=True, slots=True)
class _RayReply:
    refusal: str | None
    pickled_outcome: bytes
    notices: list[str]


_NODE_ADVICE = (
    "All nodes need the same version, and the same folders under the same paths (NFS, Lustre, …), sources and target"
)


def _run_on_node(order: _RayTaskContext, task: Any) -> _RayReply:
    """Runs on the node."""
    refusal = order.refusal()
    if refusal is not None:
        return _RayReply(refusal, b"", [])
    with _captured_warnings() as notices:
        answered = run_and_pickle(order.work, task)
    return _RayReply(None, answered, notices)


@contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """What is logged meanwhile, which nobody would read on the node."""
    notices: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: notices.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield notices
    finally:
        log.removeHandler(handler)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2]


COMPARED_BYTES = 4096
MAX_WITNESSES = 16
"""Folders looked into by every task: those of one dataset are few, and a look costs microseconds."""


@dataclass(frozen=True, slots=True)
class WitnessFile:
    """A file as we see it."""

    path: str
    size: int
    head_crc32: int

    @classmethod
    def of(cls, path: str) -> WitnessFile:
        """What that file looks like from here."""
        with LocalFile(path) as file:
            return cls(path, file.size, deflate.crc32(file.read_at(0, COMPARED_BYTES)))

    def is_same_here(self) -> bool:
        """Whether it looks the same from where this runs."""
        try:
            return WitnessFile.of(self.path) == self
        except StorageError:
            return False


def make_witness_files(paths: Iterable[str]) -> tuple[WitnessFile, ...]:
    """One file of each folder, of those that can be read here; what is not a local path needs none."""
    found: dict[str, WitnessFile] = {}
    for path in paths:
        folder = os.path.dirname(path)
        if folder not in found and not is_remote(path) and len(found) < MAX_WITNESSES:
            with suppress(StorageError):  # its task will say what is wrong with it
                found[folder] = WitnessFile.of(path)
    return tuple(found.values())
