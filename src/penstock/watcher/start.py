"""Begin to watch: the recorder, the looks at the machine, the housekeeping thread; and end all of it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from penstock import __version__
from penstock.core.text import redact_secrets
from penstock.recording.format import EndLine, RunLine, StackSamplesLine
from penstock.recording.writer import Recorder
from penstock.watcher.dataloader.worker_files import WorkerFiles
from penstock.watcher.gc_watch import watch_collector
from penstock.watcher.loader_views import LoaderView
from penstock.watcher.machine.facts import machine_facts
from penstock.watcher.machine.sampler import SystemSampler
from penstock.watcher.rank_files import rank_and_world
from penstock.watcher.session import Session, Sink
from penstock.watcher.stack_sampler import StackSampler

POLL_S = 0.5
"""Between looks at what workers have written and steps have noted: with the recorder's wait, what a crash loses."""

_alive: weakref.WeakSet[WatchedRun] = weakref.WeakSet()


class WatchedRun:
    """A session with all that runs beside it. Closed by whoever opened it, or when the interpreter ends."""

    def __init__(
        self, record: str | Path | None, sinks: Sequence[Sink] = (), *, probe: str = "", within: str | None = None
    ) -> None:
        all_sinks = list(sinks)
        if record is not None:
            all_sinks.insert(0, Recorder(record, _run_line(probe)))
        self.record = record
        self.idle = not all_sinks
        """Nobody is told anything: then nothing is watched."""
        self.session = Session(all_sinks)
        self.worker_files = WorkerFiles(within)
        self.sides: list[LoaderView] = []
        self.closed = False
        self._ended = threading.Event()
        self._system = SystemSampler(self.session.now, self.session.put, self._workers)
        self._main = StackSampler(
            threading.get_native_id(), threading.get_ident(), elsewhere=lambda: self.session.waiting
        )
        self._housekeeper = threading.Thread(target=self._keep_house, name="penstock-watch", daemon=True)
        self.session.off = self.idle
        self._stop_collector = _nothing
        if not self.idle:
            self.session.looker = self._main
            self._stop_collector = watch_collector(self.session)
            self._system.start()
            self._housekeeper.start()
        atexit.register(self._at_exit)
        _alive.add(self)

    def close(self, exit_code: int = 0, how: str = "done") -> None:
        """The last lines, then nothing more. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self._at_exit)
        self._ended.set()
        self._stop_collector()
        self._system.stop()
        self._main.stop()
        if self._housekeeper.is_alive():
            self._housekeeper.join(2.0)
        with self.session.guard():
            self.session.end_lone()
            self._poll(last=True)
        self.session.put_last(EndLine(at_s=self.session.now(), exit_code=exit_code, how=how))
        self.session.close()
        self.worker_files.close()

    def forget(self) -> None:
        """In a forked child, where there are no threads: the run is the parent's to record."""
        if not self.closed:
            self._stop_collector()
        self.closed = True
        self.session.off = True
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """The code of a `sys.exit` is not known here; an error that ended the script is."""
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if error is None:
            self.close()
        elif isinstance(error, KeyboardInterrupt):
            self.close(130, "interrupted")
        else:
            self.close(1, "raised")

    def _workers(self) -> dict[int, tuple[int, int]]:
        sides = tuple(self.sides)
        return {pid: (side.number, worker) for side in sides for pid, worker in side.processes().items()}

    def _keep_house(self) -> None:
        while not self._ended.wait(POLL_S):
            try:
                self._poll()
            except Exception as error:
                self.session.fail(error)
                return

    def _poll(self, *, last: bool = False) -> None:
        self.session.settle()
        for spooled in self.worker_files.drain(last=last):
            self.session.put(spooled)
        seen = self._main.take()
        if seen is not None:
            where = StackSamplesLine(
                at_s=self.session.now(), samples=seen.samples, states=dict(seen.states), functions=seen.top_functions()
            )
            self.session.put(where)
        for side in tuple(self.sides):
            for line in side.poll(self.session.now()):
                self.session.put(line)


def _nothing() -> None:
    """There is nothing to stop."""


def _run_line(probe: str) -> RunLine:
    rank, world_size = rank_and_world()
    return RunLine(
        penstock=__version__,
        began_unix_s=time.time(),
        command=tuple(map(redact_secrets, sys.argv)),
        rank=rank,
        world_size=world_size,
        pid=os.getpid(),
        machine=machine_facts(),
        probe=probe,
    )


def _after_fork() -> None:
    for watching in list(_alive):
        watching.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
