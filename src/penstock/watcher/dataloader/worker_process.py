"""What runs inside torch's worker processes: every batch timed, and written to a file that the main process reads.

The worker's loop is left as it is. Its two queues tell when a task came and when its batch left, stamps on the
fetcher's attributes tell the samples apart (see `meter`), and an audit hook counts files opened. When any of this
fails, the worker goes on untimed and says so once.

Standard library only: whoever unpickles this in a fresh process pays for no more.
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
"""A file that has grown to this is closed and another begun, so that what was read can be removed."""


class WorkerWriter:
    """Appends notes, each with one write. The worker's thread and its sampler's share it."""

    def __init__(self, folder: str, name: str) -> None:
        self._stem = os.path.join(folder, name)
        self._part = 0
        self._lock = threading.Lock()
        self._fd = self._open()
        self._written_bytes = 0

    def write(self, message: dict[str, Any]) -> None:
        """One line."""
        text = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._written_bytes > FILE_BYTES:
                self._close()
                self._part += 1
                self._fd = self._open()
                self._written_bytes = 0
            self._written_bytes += os.write(self._fd, text)

    def close(self) -> None:
        """Nothing can be written after it."""
        with self._lock:
            self._close()

    def _open(self) -> int:
        return os.open(f"{self._stem}-{self._part}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _close(self) -> None:
        """The last line lets the reader remove the file."""
        os.write(self._fd, b'{"closed":true}\n')
        os.close(self._fd)
        self._fd = -1


WorkerInitFn = Callable[[int], object]

REPORT_FILES_AFTER = (4, 64)
"""After so many fetches a worker tells which files it reads from: for a look at the storage after the run."""
MAX_REPORTED_FILES = 8
_CODE_SUFFIXES = (".py", ".pyc", ".so", ".pth", ".egg-link")


class _AttachThenInit:
    """`Telemetry.__call__`: sets up the telemetry, then is the user's own init function.

    Being an attribute that is looked up, not a function around the user's, it leaves no frame in his tracebacks.
    """

    def __get__(self, telemetry: WorkerTelemetry | None, owner: type | None = None) -> WorkerInitFn:
        if telemetry is None:
            return _no_init
        loop = _worker_loop_frame(sys._getframe())
        if loop is not None:
            _attach(telemetry, loop)
        return telemetry.init_fn or _no_init


@dataclass(frozen=True, kw_only=True)
class WorkerTelemetry:
    """A worker_init_fn that has its worker timed. Picklable if the user's own is."""

    folder: str
    loader: int
    epoch: int
    clock_start: float
    """When the run began, on the clock that all processes of the machine share."""
    workers_started_s: float
    """When the loader began to start its workers."""
    in_order: bool
    iterable: bool
    init_fn: WorkerInitFn | None
    """The user's own."""
    __call__ = _AttachThenInit()


class WorkerRecorder:
    """One worker process: turns what passes through its queues into lines."""

    def __init__(self, telemetry: WorkerTelemetry, worker: int, dataset: object, *, stateful: bool) -> None:
        """`stateful`: of torchdata's StatefulDataLoader, whose tasks and batches have something beside them."""
        self._telemetry = telemetry
        self._worker = worker
        self._stateful = stateful
        self._writer = WorkerWriter(telemetry.folder, f"{telemetry.loader}-{telemetry.epoch}-{worker}-{os.getpid()}")
        sampler = StackSampler(threading.get_native_id(), threading.get_ident(), self._write_stack_samples)
        self.timer = FetchTimer(dataset, sampler)
        self._task: int | None = None
        self._index: object = None
        self._fetches = 0
        self._epoch_started_s: float | None = None
        """When the pass began that these fetches belong to, if the worker has lived through others before."""
        self._disabled = False
        now = self._now()
        self._write(
            {"kind": "event", "what": "worker_started", "at_s": now, "seconds": now - telemetry.workers_started_s}
        )

    def wrap_queues(self, index_queue: Any, data_queue: Any) -> None:
        """Hear of tasks that come and batches that leave."""
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
        """The last thing that this worker tells."""
        self._disabled = True
        self.timer.sampler.stop()
        detail = {"error": f"{type(error).__name__}: {error}"}
        with suppress(OSError):  # the spool itself may be what failed: then there is nowhere to say it
            self._write({"kind": "event", "what": "watcher_failed", "at_s": self._now(), "detail": detail})
            self._writer.close()

    def _guarded(self, note: Callable[..., Any], *what: Any) -> Any:
        if self._disabled:
            return None
        try:
            return note(*what)
        except Exception as error:
            self.fail(error)
            return None

    def _on_task(self, task: Any) -> None:
        if task is None:  # the last one
            self.timer.sampler.stop()
            if (seen := self.timer.sampler.take()) is not None:
                self._write_stack_samples(seen)
            self._writer.close()
        elif isinstance(task, tuple):
            self._task, index = task
            self._index = index[0] if self._stateful else index
            self.timer.start()
        elif type(task).__name__ == "_ResumeIteration":  # a pass begins anew with the same workers
            self._epoch_started_s = self._now()

    def _finish_fetch(self, item: Any) -> dict[str, float] | None:
        """Numbers of the batch that is about to leave; None for anything else (an error, an end, an answer)."""
        if item[0] != self._task:
            return None
        batch = item[1][0] if self._stateful else item[1]
        if type(batch).__name__ in ("ExceptionWrapper", "_IterableDatasetStopIteration"):
            return None
        return self.timer.finish(requested_samples(self._index, iterable=self._telemetry.iterable))

    def _write_fetch(self, numbers: dict[str, float]) -> None:
        telemetry, task = self._telemetry, self._task
        self._task = None
        known = telemetry.in_order and not telemetry.iterable
        at_s = round(self.timer.started_at - telemetry.clock_start, 7)
        line = {"kind": "fetch", "batch": task if known else -1, "at_s": at_s, **numbers}
        self._write(line, task if telemetry.in_order and telemetry.iterable else None)
        self._fetches += 1
        if self._fetches in REPORT_FILES_AFTER:
            detail = {"paths": data_files(self.timer.recent_paths)}
            self._write({"kind": "event", "what": "files", "at_s": self._now(), "detail": detail})

    def _drop_unfinished_task(self) -> None:
        """A task that no batch came of: the number after it is the next batch's."""
        if self._task is not None:
            self.timer.sampler.pause()
            if self._telemetry.in_order and self._telemetry.iterable:
                self._write(None, self._task)
            self._task = None

    def _write_stack_samples(self, seen: StackCounts) -> None:
        functions = seen.top_functions()
        self._write(
            {"kind": "where", "at_s": self._now(), "looks": seen.samples, "states": seen.states, "functions": functions}
        )

    def _write(self, line: dict[str, Any] | None, task: int | None = None) -> None:
        telemetry = self._telemetry
        note: dict[str, Any] = {"loader": telemetry.loader, "pass": telemetry.epoch}
        if line is not None:
            note["line"] = {"loader": telemetry.loader, "worker": self._worker, **line}
            if line["kind"] == "fetch":
                note["line"]["pass"] = telemetry.epoch
        if task is not None:
            note["task"] = task
        if self._epoch_started_s is not None:
            note["since_s"] = self._epoch_started_s
        self._writer.write(note)

    def _now(self) -> float:
        return round(time.perf_counter() - self._telemetry.clock_start, 7)


def _attach(telemetry: WorkerTelemetry, frame: FrameType) -> None:
    """Have this worker's loop timed, whose frame this is."""
    loop, stateful = frame.f_locals, str(frame.f_globals.get("__name__")).startswith("torchdata.")
    try:
        worker = WorkerRecorder(telemetry, loop["worker_id"], loop["dataset"], stateful=stateful)
    except (OSError, KeyError):  # no spool any more, or another torch: untimed
        return
    try:
        fetchers = sys.modules["torch.utils.data._utils.fetch"]
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            fetcher = getattr(fetchers, name)
            for attribute, stamp in timed_attributes(fetcher, worker.timer).items():
                setattr(fetcher, attribute, stamp)
        _count_opened_files(worker.timer)
        gc.callbacks.append(worker.timer.on_gc)
        worker.wrap_queues(loop["index_queue"], loop["data_queue"])
    except Exception as error:
        worker.fail(error)


def _count_opened_files(meter: FetchTimer) -> None:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            meter.files_opened += 1
            if isinstance(args[0], str):
                meter.recent_paths.append(args[0])

    sys.addaudithook(hook)


def data_files(opened: Iterable[str]) -> list[str]:
    """Regular files that are open, then those opened last; neither code nor memory."""
    latest = (os.path.abspath(path) for path in reversed(list(opened)))
    return [path for path in dict.fromkeys([*_paths_open_for_reading(), *latest]) if _is_data(path)][
        :MAX_REPORTED_FILES
    ]


def _paths_open_for_reading() -> Iterator[str]:
    """Paths of descriptors that are for reading only: what is written to is no data."""
    with suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError), open(f"/proc/self/fdinfo/{fd}") as info:
                flags = next((int(line.split()[1], 8) for line in info if line.startswith("flags:")), os.O_WRONLY)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    yield os.readlink(f"/proc/self/fd/{fd}")


def _is_data(path: str) -> bool:
    if not path.startswith("/") or path.startswith(("/proc/", "/dev/", "/sys/")) or path.endswith(_CODE_SUFFIXES):
        return False
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0 and not path.startswith(sys.prefix)


def _worker_loop_frame(frame: FrameType | None) -> FrameType | None:
    """Of torch's worker loop, if that is who called; None in the main process."""
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    return frame


def _no_init(worker: int) -> None:
    """Stands for an init function where the user gave none."""
