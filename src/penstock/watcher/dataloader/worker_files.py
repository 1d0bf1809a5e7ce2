"""The files in which worker processes leave what they measured, read by the main process into lines of the recording.

A worker knows the number of its task, which is also the index of the batch in the epoch, with two exceptions:

1. A task of an iterable dataset may give no batch. Batches are therefore counted in the order of their tasks, each as
   soon as the results of all earlier tasks are known.
2. Without `in_order`, the training loop gets batches in the order in which they are complete, which a worker does not
   know. Their index is -1.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.recording.format import EventLine, FetchLine, StackSamplesLine

MAX_UNNUMBERED = 10_000
"""Batches that may wait for the result of an earlier task. Beyond that, the result is lost, and they get no index."""
READ_BYTES = 16 << 20
"""Bytes that are read from one file at a time."""

WorkerLine = FetchLine | StackSamplesLine | EventLine


class WorkerMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a worker's file."""

    loader: int = -1
    epoch: int = msgspec.field(name="pass", default=0)
    """The epoch for which the worker was started."""
    line: WorkerLine | None = None
    """A line of the recording; None if `task` gave no batch."""
    task: int | None = None
    """The number of the task, if the index of its batch has to be counted (case 1 above)."""
    since_s: float | None = None
    """When the worker began its current epoch, if it was started for an earlier one."""
    closed: bool = False
    """Whether this is the last line of the file."""


class WorkerFiles:
    """A temporary folder to which workers write and from which the main process reads.

    It is made when it is first needed, and removed by `close` in the process that made it. `parent` is the folder to
    make it in, for a caller that removes what a killed process leaves; by default the system's temporary folder.
    """

    def __init__(self, parent: str | None = None) -> None:
        self._parent = parent
        self._folder: Path | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._own_lines: deque[WorkerLine] = deque()
        """Lines of the main process itself."""
        self._offsets: dict[str, int] = {}
        """Bytes of each file that were read."""
        self._epochs: dict[int, list[tuple[float, int]]] = {}
        """Loader → its epochs in order, each with its start in seconds since the run started and its number."""
        self._numberings: dict[tuple[int, int], _BatchNumbering] = {}
        """One per (loader, epoch) whose batches have to be counted."""
        self._decoder = msgspec.json.Decoder(WorkerMessage)
        self._reported_unreadable = False

    @property
    def folder(self) -> Path:
        """The folder for workers to write to; made on first access."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="penstock-spool-", dir=self._parent))
            return self._folder

    def epoch_started(self, loader: int, epoch: int, started_s: float) -> None:
        """Note when an epoch started: persistent workers know this time for their epoch, but not its number."""
        self._epochs.setdefault(loader, []).append((started_s, epoch))

    def put(self, line: WorkerLine) -> None:
        """Add a line of the main process."""
        self._own_lines.append(line)

    def drain(self, *, last: bool = False) -> list[WorkerLine]:
        """Return the new lines. With `last`, batches that still wait for an index are returned too, without one."""
        with self._lock:
            lines = [self._own_lines.popleft() for _ in range(len(self._own_lines))]
            for message in self._new_messages():
                lines += self._lines_from(message)
            if last:
                for numbering in self._numberings.values():
                    lines += numbering.release()
            return lines

    def close(self) -> None:
        """Remove the folder. Workers that still write do so to deleted files."""
        with self._lock:
            if self._folder is not None and os.getpid() == self._pid:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _new_messages(self) -> Iterator[WorkerMessage]:
        if self._folder is None:
            return
        for name in sorted(os.listdir(self._folder)) if self._folder.exists() else ():
            path = self._folder / name
            for text in self._new_lines(path):
                try:
                    message = self._decoder.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    yield from self._report_unreadable(name)
                    continue
                if message.closed:
                    self._remove(path)
                else:
                    yield message

    def _remove(self, path: Path) -> None:
        with suppress(OSError):  # on Windows, while its worker still has it open; `close` removes it then
            path.unlink()
            del self._offsets[path.name]

    def _new_lines(self, path: Path) -> list[bytes]:
        """Return the complete lines of a file that were not read before."""
        with path.open("rb") as file:
            offset = self._offsets.get(path.name, 0)
            file.seek(offset)
            complete, newline, _ = file.read(READ_BYTES).rpartition(b"\n")
        self._offsets[path.name] = offset + len(complete) + len(newline)
        return complete.splitlines()

    def _report_unreadable(self, name: str) -> Iterator[WorkerMessage]:
        """Yield an event for the first line that cannot be read, and nothing for later ones."""
        if not self._reported_unreadable:
            self._reported_unreadable = True
            error = f"a line that worker {name} wrote cannot be read"
            yield WorkerMessage(line=EventLine(what="watcher_failed", at_s=0.0, detail={"error": error}))

    def _lines_from(self, message: WorkerMessage) -> list[WorkerLine]:
        """Return the lines of the recording that this message completes."""
        epoch = self._epoch_of(message)
        line = message.line
        if isinstance(line, FetchLine) and line.epoch != epoch:
            line = msgspec.structs.replace(line, epoch=epoch)
        if message.task is None:
            return [] if line is None else [line]
        numbering = self._numberings.setdefault((message.loader, epoch), _BatchNumbering())
        return numbering.add(message.task, line if isinstance(line, FetchLine) else None)

    def _epoch_of(self, message: WorkerMessage) -> int:
        """Return the epoch of a message: for a persistent worker, the last one that started before `since_s`."""
        if message.since_s is None:
            return message.epoch
        epochs = self._epochs.get(message.loader, [])
        started = bisect_right(epochs, (message.since_s, sys.maxsize))
        return epochs[started - 1][1] if started else message.epoch


class _BatchNumbering:
    """Counts the batches of one epoch in the order of their tasks, leaving out tasks that gave no batch."""

    def __init__(self) -> None:
        self._next_task = 0
        self._next_batch = 0
        self._unnumbered: dict[int, FetchLine | None] = {}
        """Task → its batch (None if it gave none), for tasks after one whose result is not known."""

    def add(self, task: int, fetch: FetchLine | None) -> list[WorkerLine]:
        """Add the result of one task, and return the batches whose index is now known."""
        self._unnumbered[task] = fetch
        numbered: list[WorkerLine] = []
        while self._next_task in self._unnumbered:
            next_fetch = self._unnumbered.pop(self._next_task)
            self._next_task += 1
            if next_fetch is not None:
                numbered.append(msgspec.structs.replace(next_fetch, batch=self._next_batch))
                self._next_batch += 1
        return numbered if len(self._unnumbered) <= MAX_UNNUMBERED else numbered + self.release()

    def release(self) -> list[WorkerLine]:
        """Return the batches that have no index, as they are, and forget them."""
        unnumbered = [fetch for fetch in self._unnumbered.values() if fetch is not None]
        self._unnumbered.clear()
        return list(unnumbered)
