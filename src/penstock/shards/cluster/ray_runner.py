"""Runs tasks on the nodes of a Ray cluster: a task runner for `use_task_runner`, in place of worker processes.

If a worker or a node dies, only its tasks are lost, and Ray retries them on other workers. Each node must have this
version of Penstock and see the same files. A node that does not makes the run fail with its name, before it has read or
written anything.
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
from penstock.shards.cluster.join import HeadNode, RayCluster
from penstock.shards.task_pool import Result, Task, TaskOutcome, run_and_pickle, unpickle_outcome
from penstock.storage.local import LocalFile
from penstock.storage.object_store.url import is_remote

log = logging.getLogger("penstock")

RETRIES = 3
"""How often a task is given to another worker after its worker has died."""
TASKS_PER_CORE = 2
"""Tasks in flight per core: while the result of one is returned, the next one is on its node already."""
POLL_INTERVAL_S = 5.0
"""Seconds between two checks whether the head node and other nodes are still there, while no task finishes."""
CANCEL_TIMEOUT_S = 10.0
"""Seconds to wait for cancelled tasks to end."""


@dataclass
class RayRunner:
    """A task runner (see `TaskRunnerFunction`) that sends tasks to a Ray cluster.

    Paths in tasks must be absolute, since the nodes have working directories of their own.
    """

    cluster: RayCluster
    shared_files: list[str] = field(default_factory=list)
    """Files that every node must see under the same path, one or more per folder. The list may be extended until the
    first task runs."""
    retries: int = RETRIES
    """How often a task whose worker died is retried."""
    node_wait_s: float = 60.0
    """Seconds to wait for a node if the cluster has none that can work: one may be about to join."""

    def __call__(
        self, work: Callable[[Task], Result], tasks: Iterable[Task], workers: int | None = None
    ) -> Iterator[TaskOutcome[Task, Result]]:
        """Yield the outcomes as they come; at most `workers` tasks are in flight."""
        ray = self.cluster.ray
        context = _RayTaskContext(work, __version__, make_witness_files(self.shared_files))
        remote_function = ray.remote(num_cpus=1, max_retries=self.retries)(_run_on_node)
        head = HeadNode(self.cluster.address)
        waiting = iter(tasks)
        in_flight: dict[Any, Task] = {}
        max_in_flight = 1
        try:
            while True:
                if head.is_reachable():
                    max_in_flight = workers or TASKS_PER_CORE * max(1, self.cluster.cpus)
                for task in islice(waiting, max(0, max_in_flight - len(in_flight))):
                    in_flight[remote_function.remote(context, task)] = task
                if not in_flight:
                    return
                for reference in self._wait_for_finished(list(in_flight), head):
                    yield self._outcome(reference, in_flight.pop(reference), head)
        finally:
            self._cancel(list(in_flight))

    def _wait_for_finished(self, references: list[Any], head: HeadNode) -> list[Any]:
        """Return the references of finished tasks, at least one; raise if no node is left to finish any."""
        without_nodes_s = 0.0
        while True:
            ready: list[Any] = self.cluster.ray.wait(references, timeout=POLL_INTERVAL_S)[0]
            if ready:
                return ready
            if not head.is_reachable():  # only the head node knows how many nodes there are
                continue
            without_nodes_s = 0.0 if self.cluster.cpus else without_nodes_s + POLL_INTERVAL_S
            if without_nodes_s >= self.node_wait_s:
                raise PenstockError(
                    "the cluster has no node left that can work",
                    stage="work",
                    advice="Run the same command again when it has one: what is finished is kept.",
                )

    def _outcome(self, reference: Any, task: Task, head: HeadNode) -> TaskOutcome[Task, Any]:
        """Return the outcome of a finished task; raise if its node cannot run any task."""
        ray = self.cluster.ray
        try:
            reply: _RayReply = ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # errors of the work are in the reply: `_run_on_node` never began
            raise SettingError(
                f"a node cannot run tasks: {_last_line(error)}",
                stage="work",
                advice=f"Install penstock {__version__} on every node of the cluster.",
            ) from None
        except ray.exceptions.RayError as error:
            head.wait_until_reachable()  # if the task ended because the head node died, it did not kill its worker
            times = f"{self.retries + 1} times" if self.retries else "once"
            reason = f"its worker died {times}: {_first_line(error)}"
            return TaskOutcome(task, None, WorkerCrash(reason, stage="work"))
        if reply.refusal is not None:
            raise StorageError(reply.refusal, stage="work", advice=_NODE_ADVICE)
        for warning in reply.warnings:
            log.warning("%s", warning)
        return unpickle_outcome(task, reply.pickled_outcome)

    def _cancel(self, references: list[Any]) -> None:
        """Cancel the tasks in flight and wait for their end, so that they cannot interfere with a later run."""
        ray = self.cluster.ray
        with suppress(ray.exceptions.RayError):
            for reference in references:
                ray.cancel(reference, force=True)
            if references:
                ray.wait(references, num_returns=len(references), timeout=CANCEL_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class _RayTaskContext:
    """The function that all tasks call, and the requirements that a node must meet to run them."""

    work: Callable[[Any], Any]
    version: str
    """The required version of Penstock."""
    witnesses: tuple[WitnessFile, ...]
    """Files that the node must see."""

    def refusal(self) -> str | None:
        """Return why this node cannot run the tasks; None if it can."""
        node = platform.node()
        if self.version != __version__:
            return f"node {node} has penstock {__version__}, and this machine {self.version}"
        unseen = next((witness.path for witness in self.witnesses if not witness.is_same_here()), None)
        return None if unseen is None else f"node {node} does not see {unseen!r} as this machine does"


@dataclass(frozen=True, slots=True)
class _RayReply:
    """The result of one task, as a node returns it."""

    refusal: str | None
    pickled_outcome: bytes
    """The result of `run_and_pickle`; empty if the node refused the task."""
    warnings: list[str]
    """Messages that were logged while the task ran."""


_NODE_ADVICE = (
    "All nodes need the same version, and the same folders under the same paths (NFS, Lustre, …), sources and target"
)


def _run_on_node(context: _RayTaskContext, task: Any) -> _RayReply:
    """Run one task; Ray calls this function on the node."""
    refusal = context.refusal()
    if refusal is not None:
        return _RayReply(refusal, b"", [])
    with _captured_warnings() as warnings:
        pickled_outcome = run_and_pickle(context.work, task)
    return _RayReply(None, pickled_outcome, warnings)


@contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """Collect the warnings logged within the context, to log them again where the command runs."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield warnings
    finally:
        log.removeHandler(handler)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2]


COMPARED_BYTES = 4096
"""Bytes of a witness file that nodes compare."""
MAX_WITNESSES = 16
"""Number of witness files that every task checks: a dataset has few folders, and a check takes microseconds."""


@dataclass(frozen=True, slots=True)
class WitnessFile:
    """A file by which a node verifies that it sees the same folder as the machine that runs the command."""

    path: str
    size: int
    """Bytes."""
    head_crc32: int
    """CRC32 of the first COMPARED_BYTES."""

    @classmethod
    def of(cls, path: str) -> WitnessFile:
        """Return the file as this machine sees it."""
        with LocalFile(path) as file:
            return cls(path, file.size, deflate.crc32(file.read_at(0, COMPARED_BYTES)))

    def is_same_here(self) -> bool:
        """Return whether this machine sees the same file."""
        try:
            return WitnessFile.of(self.path) == self
        except StorageError:
            return False


def make_witness_files(paths: Iterable[str]) -> tuple[WitnessFile, ...]:
    """Return one readable file of each local folder; remote paths need no check."""
    by_folder: dict[str, WitnessFile] = {}
    for path in paths:
        folder = os.path.dirname(path)
        if folder not in by_folder and not is_remote(path) and len(by_folder) < MAX_WITNESSES:
            with suppress(StorageError):  # the task that reads the file will report the error
                by_folder[folder] = WitnessFile.of(path)
    return tuple(by_folder.values())
