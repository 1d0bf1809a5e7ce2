"""Samples a thread several times a second: the kind of system call it is in, and its innermost Python function.

This module imports the standard library only, because it also runs in torch's worker processes.
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
"""Number of a system call → read (file input), open (metadata), lock, sleep, network, write. All others: "other"."""
FUTEX: int | None = {"x86_64": 202, "aarch64": 98}.get(platform.machine())


SAMPLES_HZ = 20.0
WINDOW_S = 1.0
"""Seconds between two deliveries of the counts."""
IDLE_S = 2.0
"""Seconds without a sample after which a sampler ends its thread; `resume` starts another."""
TOP_FUNCTIONS = 12
_RUNTIME_BYTES = 1 << 17
"""Size of the part of the interpreter's own state that holds the GIL's futex (96 KiB deep in Python 3.13)."""


@dataclass(slots=True)
class StackCounts:
    """The stack samples of a window, counted by state and by function."""

    samples: int = 0
    states: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)

    def add(self, state: str, function: str) -> None:
        """Count one sample."""
        self.samples += 1
        self.states[state] += 1
        self.functions[function] += 1

    def top_functions(self) -> dict[str, int]:
        """Return the most frequent functions with their counts."""
        return dict(self.functions.most_common(TOP_FUNCTIONS))


class SampledThread:
    """One thread of this process, sampled from another one.

    A thread that only waits for the GIL counts as running: it has work, and often the sampler itself keeps it waiting.
    It is then in a futex call, like a thread that waits for a lock of the program. But the address of that futex is
    inside the interpreter's own state, while locks of the program lie on the heap.
    """

    def __init__(self, native_id: int, ident: int) -> None:
        self._ident = ident
        folder = f"/proc/self/task/{native_id}"
        self._syscall = ProcFile(f"{folder}/syscall")
        self._stat = ProcFile(f"{folder}/stat")

    def sample(self) -> tuple[str, str]:
        """Return its current state and function ("module:name"); "other" and "?" if they are not known."""
        return self._state(), self._function()

    def _state(self) -> str:
        fields = self._syscall.read().split()
        if not fields or fields[0] == b"-1":
            return self._state_outside_calls(if_asleep="read" if fields else "other")
        if fields[0] == b"running":
            return "running"
        number = int(fields[0])
        if number == FUTEX and 0 <= int(fields[1], 16) - _runtime_address() < _RUNTIME_BYTES:
            return "running"
        state = STATES.get(number, "other")
        return _state_by_descriptor(int(fields[1], 16)) or state if state in ("read", "write") else state

    def _state_outside_calls(self, if_asleep: str) -> str:
        """Return the state by the letter in `stat`: the thread is in no system call, or the system does not show it.

        A thread that sleeps outside of all system calls waits until a page of a mapped file has been read.
        """
        fields = self._stat.read().rpartition(b")")[2].split()
        return {b"R": "running", b"D": "read", b"S": if_asleep}.get(fields[0], "other") if fields else "other"

    def _function(self) -> str:
        frame = frames_by_thread().get(self._ident)
        while frame is not None:
            module = frame.f_globals.get("__name__", "?")
            if not str(module).startswith("penstock.watcher."):
                return f"{module}:{frame.f_code.co_qualname}"
            frame = frame.f_back
        return "?"


class StackSampler:
    """Samples one thread between `resume` and `pause`, on a thread of its own that ends after a pause of IDLE_S.

    In a forked child the object exists but its thread does not, and is not started.
    """

    def __init__(
        self,
        native_id: int,
        ident: int,
        put: Callable[[StackCounts], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        skip: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make a sampler of the thread with these ids; it does not sample yet.

        `put` gets the counts about once a second, on the sampler's thread. Without it, the caller collects them with
        `take`. While `skip` returns True, no sample is taken.
        """
        self.active = False
        """Whether it samples."""
        self._sampled_thread: SampledThread | None = None
        self._ids = native_id, ident
        self._put = put
        self._clock = clock
        self._skip = skip
        self._counts = StackCounts()
        self._window_began_s = self._last_sample_s = clock.now()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def resume(self) -> None:
        """Sample from now on. This is called at every batch, and is cheap while the sampler's thread exists."""
        self.active = True
        if self._thread is None:
            self._start()

    def pause(self) -> None:
        """Take no samples until `resume`."""
        self.active = False

    def take(self) -> StackCounts | None:
        """Return the counts since the last call; None if there were no samples."""
        with self._lock:
            counts, self._counts = self._counts, StackCounts()
            self._window_began_s = self._clock.now()
        return counts if counts.samples else None

    def stop(self) -> None:
        """Stop for good. This does not wait for the sampler's thread, which ends when its next sample would be due."""
        self.active = False
        self._stopped.set()

    def tick(self) -> bool:
        """Take one sample unless paused, and deliver the counts when due; return False after IDLE_S without samples."""
        now = self._clock.now()
        if self.active and self._sampled_thread is not None and not self._skip():
            self._last_sample_s = now
            state, function = self._sampled_thread.sample()
            with self._lock:
                self._counts.add(state, function)
        window_over = now - self._window_began_s >= WINDOW_S
        if self._put is not None and window_over and (counts := self.take()) is not None:
            self._put(counts)
        return now - self._last_sample_s < IDLE_S

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopped.is_set() or os.getpid() != self._pid:
                return
            self._last_sample_s = self._clock.now()
            if self._sampled_thread is None:
                self._sampled_thread = SampledThread(*self._ids)
            self._thread = threading.Thread(target=self._run, name="penstock-stack-sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(Exception):  # the sampled thread has ended, or `put` failed: sampling ends
            while not self._stopped.wait(1 / SAMPLES_HZ):
                if not self.tick() and self._end_unless_active():
                    return

    def _end_unless_active(self) -> bool:
        """Let `resume` start a new thread, and return True, unless the sampler was resumed meanwhile."""
        with self._lock:
            if not self.active:
                self._thread = None
            return self._thread is None


def _state_by_descriptor(fd: int) -> str | None:
    """Return the state of a thread that reads or writes this descriptor; None if it depends on the call.

    Sockets are network. In pipes and terminals the thread waits for another process: "other".
    """
    with suppress(OSError):
        target = os.readlink(f"/proc/self/fd/{fd}")
        if target.startswith("socket:"):
            return "network"
        if target.startswith(("pipe:", "/dev/pts/", "/dev/tty")):
            return "other"
    return None


@cache
def _runtime_address() -> int:
    """Return the address of the interpreter's own state; if it is not known, one beyond all futexes."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    except (ValueError, AttributeError):
        return 1 << 64
