"""Starts everything that watches one run: the recorder, the samplers and the polling thread; and ends all of it."""

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
"""Seconds between two polls of the workers' files and the finished steps.

A crash loses at most the lines of this time and of the recorder's own delay."""
JOIN_TIMEOUT_S = 2.0
"""Seconds that `close` waits for the polling thread."""

_runs: weakref.WeakSet[WatchedRun] = weakref.WeakSet()
"""All runs of this process, for the hook that disables them in forked children."""


class WatchedRun:
    """A session with everything that runs beside it. It is closed by its owner, or when the interpreter exits."""

    def __init__(
        self,
        record: str | Path | None,
        sinks: Sequence[Sink] = (),
        *,
        probe: str = "",
        worker_files_parent: str | None = None,
    ) -> None:
        """Start a run, unless it has no sink at all.

        `record` is the path of the recording, None for a run without one. `sinks` get the same lines. `probe` is the
        value of `RunLine.probe`. `worker_files_parent` is the folder in which the workers' files are made; None is the
        system's folder for temporary files.
        """
        all_sinks = list(sinks)
        if record is not None:
            all_sinks.insert(0, Recorder(record, _run_line(probe)))
        self.record = record
        self.idle = not all_sinks
        """Whether there is no sink. Then nothing is watched."""
        self.session = Session(all_sinks)
        self.worker_files = WorkerFiles(worker_files_parent)
        self.loader_views: list[LoaderView] = []
        """The views of all watched loaders."""
        self.closed = False
        self._ended = threading.Event()
        self._system_sampler = SystemSampler(self.session.now, self.session.put, self._worker_processes)
        self._stack_sampler = StackSampler(
            threading.get_native_id(), threading.get_ident(), skip=lambda: self.session.waiting
        )
        self._poll_thread = threading.Thread(target=self._poll_until_ended, name="penstock-watch", daemon=True)
        self.session.off = self.idle
        self._stop_watching_gc = _do_nothing
        if not self.idle:
            self.session.stack_sampler = self._stack_sampler
            self._stop_watching_gc = watch_collector(self.session)
            self._system_sampler.start()
            self._poll_thread.start()
        atexit.register(self._close_at_exit)
        _runs.add(self)

    def close(self, exit_code: int = 0, how: str = "done") -> None:
        """Write the last lines and stop everything. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self._close_at_exit)
        self._ended.set()
        self._stop_watching_gc()
        self._system_sampler.stop()
        self._stack_sampler.stop()
        if self._poll_thread.is_alive():
            self._poll_thread.join(JOIN_TIMEOUT_S)
        with self.session.guard():
            self.session.end_lone_batch()
            self._poll(last=True)
        self.session.put_last(EndLine(at_s=self.session.now(), exit_code=exit_code, how=how))
        self.session.close()
        self.worker_files.close()

    def disable_in_child(self) -> None:
        """Turn the run off in a forked child, which has none of its threads. The parent goes on recording."""
        if not self.closed:
            self._stop_watching_gc()
        self.closed = True
        self.session.off = True
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """Close with the error that ended the script, if there was one. The code of a `sys.exit` is not known here."""
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if error is None:
            self.close()
        elif isinstance(error, KeyboardInterrupt):
            self.close(130, "interrupted")
        else:
            self.close(1, "raised")

    def _worker_processes(self) -> dict[int, tuple[int, int]]:
        """Return (loader, worker) by process id."""
        views = tuple(self.loader_views)
        return {pid: (view.number, worker) for view in views for pid, worker in view.processes().items()}

    def _poll_until_ended(self) -> None:
        while not self._ended.wait(POLL_S):
            try:
                self._poll()
            except Exception as error:
                self.session.fail(error)
                return

    def _poll(self, *, last: bool = False) -> None:
        """Pass on what has accumulated: finished steps, lines of workers, stack samples, lines of loaders."""
        self.session.flush()
        for worker_line in self.worker_files.drain(last=last):
            self.session.put(worker_line)
        counts = self._stack_sampler.take()
        if counts is not None:
            self.session.put(
                StackSamplesLine(
                    at_s=self.session.now(),
                    samples=counts.samples,
                    states=dict(counts.states),
                    functions=counts.top_functions(),
                )
            )
        for view in tuple(self.loader_views):
            for line in view.poll(self.session.now()):
                self.session.put(line)


def _do_nothing() -> None:
    pass


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
    for run in list(_runs):
        run.disable_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
