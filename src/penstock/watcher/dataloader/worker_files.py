"""Where worker processes leave what they measured, and how it becomes lines of the recording.

A worker knows the number of its task, and that is the number of the batch, with two exceptions. An iterable dataset's
tasks may come to nothing, so batches are counted in the order of tasks once all earlier ones are known. And without
`in_order` the loop gets batches as they come: theirs is -1.
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
"""Fetches that wait for an earlier task's fate; beyond that something is lost, and they go without a number."""
READ_BYTES = 16 << 20
"""Of one file, at one time."""

WorkerLine = FetchLine | StackSamplesLine | EventLine


class WorkerMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a spool file."""

    loader: int = -1
    epoch: int = msgspec.field(name="pass", default=0)
    line: WorkerLine | None = None
    """None, with a task: nothing came of it."""
    task: int | None = None
    """Where the batch's number has still to be found."""
    since_s: float | None = None
    """When the pass began in that worker, if it was started for an earlier one."""
    closed: bool = False
    """No more comes in this file."""


class WorkerFiles:
    """A folder of its own, made when first needed and removed at the end by the process that made it.

    It lies among the system's temporary ones, or where whoever may have to tidy up after that process says (`within`).
    """

    def __init__(self, parent: str | None = None) -> None:
        self._parent = parent
        self._folder: Path | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._own_lines: deque[WorkerLine] = deque()
        self._offsets: dict[str, int] = {}
        self._epochs: dict[int, list[tuple[float, int]]] = {}
        self._numberings: dict[tuple[int, int], _BatchNumbering] = {}
        self._decoder = msgspec.json.Decoder(WorkerMessage)
        self._reported_unreadable = False

    @property
    def folder(self) -> Path:
        """For workers to write to."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="penstock-spool-", dir=self._parent))
            return self._folder

    def epoch_started(self, loader: int, epoch: int, started_s: float) -> None:
        """A pass begins: workers that outlive a pass do not know its number, only when it began for them."""
        self._epochs.setdefault(loader, []).append((started_s, epoch))

    def put(self, line: WorkerLine) -> None:
        """A line of this process's own."""
        self._own_lines.append(line)

    def drain(self, *, last: bool = False) -> list[WorkerLine]:
        """What is new. With `last`, also fetches that still wait for their number: they get none."""
        with self._lock:
            lines = [self._own_lines.popleft() for _ in range(len(self._own_lines))]
            for note in self._messages():
                lines += self._lines_from(note)
            if last:
                for count in self._numberings.values():
                    lines += count.release()
            return lines

    def close(self) -> None:
        """Remove the folder. Workers that still write do so to files without a name."""
        with self._lock:
            if self._folder is not None and os.getpid() == self._pid:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _messages(self) -> Iterator[WorkerMessage]:
        if self._folder is None:
            return
        for name in sorted(os.listdir(self._folder)) if self._folder.exists() else ():
            path = self._folder / name
            for text in self._new_lines(path):
                try:
                    note = self._decoder.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    yield from self._report_unreadable(name)
                    continue
                if note.closed:
                    self._remove(path)
                else:
                    yield note

    def _remove(self, path: Path) -> None:
        with suppress(OSError):  # Windows: its writer has not quite closed it; it goes with the folder
            path.unlink()
            del self._offsets[path.name]

    def _new_lines(self, path: Path) -> list[bytes]:
        """Whole lines that were not read before; half a line stays for the next time."""
        with path.open("rb") as file:
            offset = self._offsets.get(path.name, 0)
            file.seek(offset)
            whole, newline, _ = file.read(READ_BYTES).rpartition(b"\n")
        self._offsets[path.name] = offset + len(whole) + len(newline)
        return whole.splitlines()

    def _report_unreadable(self, name: str) -> Iterator[WorkerMessage]:
        """Once."""
        if not self._reported_unreadable:
            self._reported_unreadable = True
            error = f"a line that worker {name} wrote cannot be read"
            yield WorkerMessage(line=EventLine(what="watcher_failed", at_s=0.0, detail={"error": error}))

    def _lines_from(self, message: WorkerMessage) -> list[WorkerLine]:
        number = self._epoch_of(message)
        line = message.line
        if isinstance(line, FetchLine) and line.epoch != number:
            line = msgspec.structs.replace(line, epoch=number)
        if message.task is None:
            return [] if line is None else [line]
        count = self._numberings.setdefault((message.loader, number), _BatchNumbering())
        return count.add(message.task, line if isinstance(line, FetchLine) else None)

    def _epoch_of(self, message: WorkerMessage) -> int:
        if message.since_s is None:
            return message.epoch
        passes = self._epochs.get(message.loader, [])
        begun = bisect_right(passes, (message.since_s, sys.maxsize))
        return passes[begun - 1][1] if begun else message.epoch


class _BatchNumbering:
    """Numbers the batches of one pass in the order of their tasks, leaving out tasks that nothing came of."""

    def __init__(self) -> None:
        self._next_task = 0
        self._next_batch = 0
        self._unnumbered: dict[int, FetchLine | None] = {}

    def add(self, task: int, fetch: FetchLine | None) -> list[WorkerLine]:
        """Those whose number is known now."""
        self._unnumbered[task] = fetch
        known: list[WorkerLine] = []
        while self._next_task in self._unnumbered:
            made = self._unnumbered.pop(self._next_task)
            self._next_task += 1
            if made is not None:
                known.append(msgspec.structs.replace(made, batch=self._next_batch))
                self._next_batch += 1
        return known if len(self._unnumbered) <= MAX_UNNUMBERED else known + self.release()

    def release(self) -> list[WorkerLine]:
        """The others, as they are."""
        held = [fetch for fetch in self._unnumbered.values() if fetch is not None]
        self._unnumbered.clear()
        return list(held)
