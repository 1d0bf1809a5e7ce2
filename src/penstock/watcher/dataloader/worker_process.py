"""Runs inside torch's worker processes: times every batch and writes its numbers to a file for the main process.

The code of torch's worker loop is not changed. Its two queues are wrapped, which shows when a task comes and when its
batch leaves. Attributes of the fetcher show where a sample ends (see fetch_timer.py), and an audit hook counts opened
files. If any of this fails, the worker reports that once and goes on untimed.

This module imports the standard library only, because a spawned worker imports it when it unpickles a WorkerTelemetry.
"""

from __future__ import annotations

import gc
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from penstock.watcher.dataloader.fetch_timer import FetchTimer, requested_samples, timed_attributes
from penstock.watcher.stack_sampler import StackCounts, StackSampler

FILE_BYTES = 1 << 20
"""Size at which a file is closed and the next one started, so that the main process can remove what it has read."""


class WorkerWriter:
    """Writes messages to a series of files, each message as one line and with one system call.

    The worker's main thread and its stack sampler's thread share it.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._path_prefix = os.path.join(folder, name)
        self._file_number = 0
        self._lock = threading.Lock()
        self._fd = self._open()
        self._written_bytes = 0

    def write(self, message: dict[str, Any]) -> None:
        """Append one line."""
        text = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._written_bytes > FILE_BYTES:
                self._close()
                self._file_number += 1
                self._fd = self._open()
                self._written_bytes = 0
            self._written_bytes += os.write(self._fd, text)

    def close(self) -> None:
        """Close the file; a later `write` raises OSError."""
        with self._lock:
            self._close()

    def _open(self) -> int:
        return os.open(f"{self._path_prefix}-{self._file_number}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _close(self) -> None:
        """Close the file with a last line that lets the reader remove it."""
        os.write(self._fd, b'{"closed":true}\n')
        os.close(self._fd)
        self._fd = -1


WorkerInitFn = Callable[[int], object]

REPORT_FILES_AFTER = (4, 64)
"""Numbers of fetches after which a worker reports which files it reads. The storage under them is measured later."""
MAX_REPORTED_FILES = 8
_CODE_SUFFIXES = (".py", ".pyc", ".so", ".pth", ".egg-link")


class _AttachThenInit:
    """The `__call__` of WorkerTelemetry: starts the timing, and returns the user's own init function to be called.

    It is a descriptor, not a function that calls the user's, so that tracebacks of the user's errors show no frame of
    Penstock.
    """

    def __get__(self, telemetry: WorkerTelemetry | None, owner: type | None = None) -> WorkerInitFn:
        if telemetry is None:
            return _no_init
        worker_loop = _worker_loop_frame(sys._getframe())
        if worker_loop is not None:
            _attach(telemetry, worker_loop)
        return telemetry.init_fn or _no_init


@dataclass(frozen=True, kw_only=True)
class WorkerTelemetry:
    """A `worker_init_fn` that starts the timing of its worker. It can be pickled if the user's own function can."""

    folder: str
    loader: int
    epoch: int
    clock_start: float
    """When the run started, as time.perf_counter, which all processes of the machine share."""
    workers_started_s: float
    """When the loader began to start its workers, in seconds since the run started."""
    in_order: bool
    iterable: bool
    init_fn: WorkerInitFn | None
    """The user's own `worker_init_fn`."""
    __call__ = _AttachThenInit()


class WorkerRecorder:
    """Times the fetches of one worker process and writes them as lines of the recording."""

    def __init__(self, telemetry: WorkerTelemetry, worker: int, dataset: object, *, stateful: bool) -> None:
        """Start the file of this worker.

        `stateful` is True for torchdata's StatefulDataLoader, whose tasks and batches are tuples with a state.
        """
        self._telemetry = telemetry
        self._worker = worker
        self._stateful = stateful
        self._writer = WorkerWriter(telemetry.folder, f"{telemetry.loader}-{telemetry.epoch}-{worker}-{os.getpid()}")
        stack_sampler = StackSampler(threading.get_native_id(), threading.get_ident(), self._write_stack_samples)
        self.timer = FetchTimer(dataset, stack_sampler)
        self._task: int | None = None
        """The number of the task that is being worked on."""
        self._index: object = None
        """The sample indices that this task requests."""
        self._fetches = 0
        self._epoch_started_s: float | None = None
        """When the current epoch began, in seconds since the run started; None in the worker's first epoch."""
        self._disabled = False
        now = self._now()
        self._write(
            {"kind": "event", "what": "worker_started", "at_s": now, "seconds": now - telemetry.workers_started_s}
        )

    def wrap_queues(self, index_queue: Any, data_queue: Any) -> None:
        """Replace `get` and `put` of the worker's queues, to note tasks that come and batches that leave."""
        get, put = index_queue.get, data_queue.put

        def get_and_note(*args: Any, **kwargs: Any) -> Any:
            self._guarded(self._drop_unfinished_task)
            task = get(*args, **kwargs)
            self._guarded(self._on_task, task)
            return task

        def note_and_put(item: Any, *args: Any, **kwargs: Any) -> None:
            numbers = self._guarded(self._finish_fetch, item)
            put(item, *args, **kwargs)
            if numbers is not None:
                self._guarded(self._write_fetch, numbers)

        index_queue.get = get_and_note
        data_queue.put = note_and_put

    def fail(self, error: Exception) -> None:
        """Stop the timing of this worker, and report the error."""
        self._disabled = True
        self.timer.stack_sampler.stop()
        detail = {"error": f"{type(error).__name__}: {error}"}
        with suppress(OSError):  # the file itself may be what failed: then the error cannot be reported
            self._write({"kind": "event", "what": "watcher_failed", "at_s": self._now(), "detail": detail})
            self._writer.close()

    def _guarded(self, action: Callable[..., Any], *args: Any) -> Any:
        """Call the action; if it raises, stop the timing and return None."""
        if self._disabled:
            return None
        try:
            return action(*args)
        except Exception as error:
            self.fail(error)
            return None

    def _on_task(self, task: Any) -> None:
        if task is None:  # torch's signal to end
            self.timer.stack_sampler.stop()
            if (stack_counts := self.timer.stack_sampler.take()) is not None:
                self._write_stack_samples(stack_counts)
            self._writer.close()
        elif isinstance(task, tuple):
            self._task, index = task
            self._index = index[0] if self._stateful else index
            self.timer.start()
        elif type(task).__name__ == "_ResumeIteration":  # persistent workers begin a new epoch
            self._epoch_started_s = self._now()

    def _finish_fetch(self, item: Any) -> dict[str, float] | None:
        """Return the numbers of the batch that is about to leave; None if the item is an error, an end or a reply."""
        if item[0] != self._task:
            return None
        batch = item[1][0] if self._stateful else item[1]
        if type(batch).__name__ in ("ExceptionWrapper", "_IterableDatasetStopIteration"):
            return None
        if getattr(batch, "exhausted", False):  # the end of a stream of penstock.DataLoader
            return None
        return self.timer.finish(requested_samples(self._index, iterable=self._telemetry.iterable))

    def _write_fetch(self, numbers: dict[str, float]) -> None:
        telemetry, task = self._telemetry, self._task
        self._task = None
        index_known = telemetry.in_order and not telemetry.iterable
        at_s = round(self.timer.started_at - telemetry.clock_start, 7)
        line = {"kind": "fetch", "batch": task if index_known else -1, "at_s": at_s, **numbers}
        self._write(line, task if telemetry.in_order and telemetry.iterable else None)
        self._fetches += 1
        if self._fetches in REPORT_FILES_AFTER:
            detail = {"paths": data_files(self.timer.recent_paths)}
            self._write({"kind": "event", "what": "files", "at_s": self._now(), "detail": detail})

    def _drop_unfinished_task(self) -> None:
        """Report that the last task gave no batch, if it gave none, so that later batches can be counted."""
        if self._task is not None:
            self.timer.stack_sampler.pause()
            if self._telemetry.in_order and self._telemetry.iterable:
                self._write(None, self._task)
            self._task = None

    def _write_stack_samples(self, counts: StackCounts) -> None:
        line: dict[str, Any] = {"kind": "where", "at_s": self._now(), "looks": counts.samples}  # glossary: allow
        self._write(line | {"states": counts.states, "functions": counts.top_functions()})

    def _write(self, line: dict[str, Any] | None, task: int | None = None) -> None:
        """Write a `worker_files.WorkerMessage`."""
        telemetry = self._telemetry
        message: dict[str, Any] = {"loader": telemetry.loader, "pass": telemetry.epoch}
        if line is not None:
            message["line"] = {"loader": telemetry.loader, "worker": self._worker, **line}
            if line["kind"] == "fetch":
                message["line"]["pass"] = telemetry.epoch
        if task is not None:
            message["task"] = task
        if self._epoch_started_s is not None:
            message["since_s"] = self._epoch_started_s
        self._writer.write(message)

    def _now(self) -> float:
        """Return the seconds since the run started."""
        return round(time.perf_counter() - self._telemetry.clock_start, 7)


def _attach(telemetry: WorkerTelemetry, frame: FrameType) -> None:
    """Start to time the worker loop that runs in this frame."""
    loop_variables, stateful = frame.f_locals, str(frame.f_globals.get("__name__")).startswith("torchdata.")
    try:
        recorder = WorkerRecorder(telemetry, loop_variables["worker_id"], loop_variables["dataset"], stateful=stateful)
    except (OSError, KeyError):  # the folder is gone, or this version of torch names its variables otherwise
        return
    try:
        fetchers = sys.modules["torch.utils.data._utils.fetch"]
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            fetcher_class = getattr(fetchers, name)
            for attribute_name, timed_attribute in timed_attributes(fetcher_class, recorder.timer).items():
                setattr(fetcher_class, attribute_name, timed_attribute)
        _count_opened_files(recorder.timer)
        gc.callbacks.append(recorder.timer.on_gc)
        recorder.wrap_queues(loop_variables["index_queue"], loop_variables["data_queue"])
    except Exception as error:
        recorder.fail(error)


def _count_opened_files(timer: FetchTimer) -> None:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            timer.files_opened += 1
            if isinstance(args[0], str):
                timer.recent_paths.append(args[0])

    sys.addaudithook(hook)


def data_files(opened: Iterable[str]) -> list[str]:
    """Return data files that this process reads: those open now, then those of `opened`, the latest first."""
    latest = (os.path.abspath(path) for path in reversed(list(opened)))
    return [path for path in dict.fromkeys([*_paths_open_for_reading(), *latest]) if _is_data(path)][
        :MAX_REPORTED_FILES
    ]


def _paths_open_for_reading() -> Iterator[str]:
    """Yield the paths of descriptors that are open for reading only; a file that is written to is not input data."""
    with suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError), open(f"/proc/self/fdinfo/{fd}") as info:
                flags = next((int(line.split()[1], 8) for line in info if line.startswith("flags:")), os.O_WRONLY)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    yield os.readlink(f"/proc/self/fd/{fd}")


def _is_data(path: str) -> bool:
    """Return whether a path is a regular file with content, outside the system's folders, and is not code."""
    if not path.startswith("/") or path.startswith(("/proc/", "/dev/", "/sys/")) or path.endswith(_CODE_SUFFIXES):
        return False
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0 and not path.startswith(sys.prefix)


def _worker_loop_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of torch's worker loop among this frame and its callers; None in the main process."""
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    return frame


def _no_init(worker: int) -> None:
    """Do nothing, in the place of the user's init function."""
