"""Where a thread is, looked at some times a second: in which kind of system call, and in which function of Python.

Standard library only: it also runs in torch's worker processes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.thread_frames import frames_by_thread
from penstock.watcher.machine.procfs import ProcFile

_X86_64 = {
    "read": (0, 17, 19, 40, 187, 208, 275, 295, 326, 327, 426),  # read, pread64, readv, sendfile, …, io_uring_enter
    "open": (2, 3, 4, 5, 6, 8, 21, 78, 79, 82, 83, 87, 89, 217, 257, 262, 263, 267, 269, 332, 437, 439),
    "lock": (65, 72, 73, 202, 220, 449),  # semop, fcntl, flock, futex, semtimedop, futex_waitv
    "sleep": (34, 35, 230),  # pause, nanosleep, clock_nanosleep
    "network": (7, 23, 42, 43, 44, 45, 46, 47, 232, 270, 271, 281, 288, 299, 307),
    "write": (1, 18, 20, 26, 74, 75, 77, 162, 277, 285, 296, 306, 328),  # write, …, msync, fsync, fdatasync
}
_AARCH64 = {
    "read": (4, 63, 65, 67, 69, 71, 76, 213, 285, 286, 426),
    "open": (17, 34, 35, 48, 56, 57, 61, 62, 78, 79, 80, 276, 291, 437, 439),
    "lock": (25, 32, 98, 192, 193, 449),
    "sleep": (101, 115),
    "network": (22, 72, 73, 202, 203, 206, 207, 211, 212, 242, 243, 269),
    "write": (46, 47, 64, 66, 68, 70, 81, 82, 83, 84, 227, 267, 287),
}

_TABLE = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), {})
STATES: dict[int, str] = {number: state for state, numbers in _TABLE.items() for number in numbers}
"""Call number → read (file input), open (metadata), lock, sleep, network, write. What is not here is "other"."""
FUTEX: int | None = {"x86_64": 202, "aarch64": 98}.get(platform.machine())


LOOKS_HZ = 20.0
WINDOW_S = 1.0
IDLE_S = 2.0
"""A sampler with nothing to look at for so long ends its thread; the next fetch starts another."""
FUNCTIONS = 12
_RUNTIME_BYTES = 1 << 17
"""The part of the interpreter's own state in which its lock lies (96 KiB deep in Python 3.13)."""


@dataclass(slots=True)
class StackCounts:
    """What a window's looks found: counts by state and by function."""

    samples: int = 0
    states: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)

    def add(self, state: str, function: str) -> None:
        """One look."""
        self.samples += 1
        self.states[state] += 1
        self.functions[function] += 1

    def top_functions(self) -> dict[str, int]:
        """The most frequent dozen."""
        return dict(self.functions.most_common(FUNCTIONS))


class ThreadStacks:
    """One thread of this process, seen from another one.

    A thread that only waits for the interpreter's lock (GIL) counts as running: it has work, and often it is the look
    itself that keeps it waiting. It sits in a futex like one that waits for a lock of the program's, but at an address
    inside the interpreter's own state, while locks of the program lie on the heap.
    """

    def __init__(self, native_id: int, ident: int) -> None:
        self._ident = ident
        folder = f"/proc/self/task/{native_id}"
        self._syscall = ProcFile(f"{folder}/syscall")
        self._stat = ProcFile(f"{folder}/stat")

    def look(self) -> tuple[str, str]:
        """State and function ("module:name") of now; "other" where the system does not tell the state."""
        return self._state(), self._function()

    def _state(self) -> str:
        call = self._syscall.read().split()
        if not call or call[0] == b"-1":
            return self._outside_calls(asleep="read" if call else "other")
        if call[0] == b"running":
            return "running"
        number = int(call[0])
        if number == FUTEX and 0 <= int(call[1], 16) - _runtime_address() < _RUNTIME_BYTES:
            return "running"
        state = STATES.get(number, "other")
        return _by_file(int(call[1], 16)) or state if state in ("read", "write") else state

    def _outside_calls(self, asleep: str) -> str:
        """By the scheduler's letter. What sleeps outside any call waits for a page of a mapped file to be read."""
        fields = self._stat.read().rpartition(b")")[2].split()
        return {b"R": "running", b"D": "read", b"S": asleep}.get(fields[0], "other") if fields else "other"

    def _function(self) -> str:
        frame = frames_by_thread().get(self._ident)
        while frame is not None:
            module = frame.f_globals.get("__name__", "?")
            if not str(module).startswith("penstock.watcher."):
                return f"{module}:{frame.f_code.co_qualname}"
            frame = frame.f_back
        return "?"


class StackSampler:
    """Looks at one thread while told to, on a thread of its own that exists only while there is something to see.

    A forked child has the object but not the thread, and does not start one.
    """

    def __init__(
        self,
        native_id: int,
        ident: int,
        put: Callable[[StackCounts], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        """`put` gets a window's worth about once a second, on the sampler's thread; without it, ask `take`."""
        self.active = False
        self.stack_samples: ThreadStacks | None = None
        self._ids = native_id, ident
        self._put = put
        self._clock = clock
        self._elsewhere = elsewhere
        self._seen = StackCounts()
        self._window_began = self._active_at = clock.now()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def resume(self) -> None:
        """From now on the thread's whereabouts matter. Called at every batch: next to nothing after the first time."""
        self.active = True
        if self._thread is None:
            self._start()

    def pause(self) -> None:
        """They do not, until resumed."""
        self.active = False

    def take(self) -> StackCounts | None:
        """What was seen since last asked; None if nothing was."""
        with self._lock:
            seen, self._seen = self._seen, StackCounts()
            self._window_began = self._clock.now()
        return seen if seen.samples else None

    def stop(self) -> None:
        """For good. Does not wait for the thread: it ends at its next look."""
        self.active = False
        self._stopped.set()

    def tick(self) -> bool:
        """One look, if it is wanted; False when nothing was wanted for long."""
        now = self._clock.now()
        if self.active and self.stack_samples is not None and not self._elsewhere():
            self._active_at = now
            state, function = self.stack_samples.look()
            with self._lock:
                self._seen.add(state, function)
        if self._put is not None and now - self._window_began >= WINDOW_S and (seen := self.take()) is not None:
            self._put(seen)
        return now - self._active_at < IDLE_S

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopped.is_set() or os.getpid() != self._pid:
                return
            self._active_at = self._clock.now()
            if self.stack_samples is None:
                self.stack_samples = ThreadStacks(*self._ids)
            self._thread = threading.Thread(target=self._run, name="penstock-whereabouts", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(Exception):  # the thread we look at has ended, or nobody takes what we saw: look no more
            while not self._stopped.wait(1 / LOOKS_HZ):
                if not self.tick() and self._ended():
                    return

    def _ended(self) -> bool:
        with self._lock:
            if not self.active:
                self._thread = None
            return self._thread is None


def _by_file(fd: int) -> str | None:
    """Reads and writes of sockets are network, those of pipes and terminals wait for another process."""
    with suppress(OSError):
        target = os.readlink(f"/proc/self/fd/{fd}")
        if target.startswith("socket:"):
            return "network"
        if target.startswith(("pipe:", "/dev/pts/", "/dev/tty")):
            return "other"
    return None


@cache
def _runtime_address() -> int:
    """Where the interpreter keeps its state; an address that no futex has if it does not tell."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    except (ValueError, AttributeError):
        return 1 << 64
