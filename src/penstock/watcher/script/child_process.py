"""A child process that stands where we stand: our terminal, our signals, and its end becomes ours."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, NoReturn

_SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
FORWARDED_SIGNALS = tuple(getattr(signal, name) for name in _SIGNAL_NAMES if hasattr(signal, name))
_PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) if sys.platform != "win32" else (signal.SIGTERM,)
"""How a child is ended that has done enough: as by Ctrl-C first, so that it can tidy up."""
GRACE_S = 15.0
"""Until the next of them."""
POLL_S = 0.05
"""Between looks whether it has done enough."""

ShouldStop = Callable[[], bool]


class ChildExit(NamedTuple):
    """Of a child."""

    pid: int
    code: int
    """Its exit code; minus the signal's number if one killed it."""
    interrupted: bool
    """Ctrl-C was pressed meanwhile. The code need not show it: an interpreter that is just starting ends with 1."""


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: BinaryIO | None = None,
    should_stop: ShouldStop | None = None,
) -> ChildExit:
    """Run it to its end.

    With `output` it prints there and has no input. Once `enough` says so it is ended: see ENDINGS.
    """
    streams: dict[str, Any] = {}
    if output is not None:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    if hasattr(signal, "sigwaitinfo"):
        return _run_and_forward_signals(command, environment, streams, should_stop)
    child = subprocess.Popen(command, env=environment, **streams)
    interrupts: list[int] = []
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))}
    for number in set(FORWARDED_SIGNALS) - {signal.SIGINT}:  # the terminal gives a Ctrl-C to both of us
        before[number] = signal.signal(number, lambda number, _: child.send_signal(number))
    ending = ChildStopper(child, should_stop)
    try:
        while child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(ending.check())
        return ChildExit(child.pid, child.returncode, bool(interrupts))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ChildStopper:
    """Ends a child that has done enough: one signal after the other until it goes."""

    def __init__(
        self, child: subprocess.Popen[bytes], should_stop: ShouldStop | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._child = child
        self._should_stop = should_stop
        self._now = now
        self._signals = list(STOP_SIGNALS)
        self._next_signal_s = float("-inf")

    def check(self) -> float | None:
        """Seconds until it wants to look again; None: never."""
        if self._should_stop is None:
            return None
        if self._signals and self._now() >= self._next_signal_s and self._should_stop():
            self._child.send_signal(self._signals.pop(0))
            self._next_signal_s = self._now() + GRACE_S
        return POLL_S


def _run_and_forward_signals(
    command: Sequence[str], environment: Mapping[str, str], streams: Mapping[str, Any], should_stop: ShouldStop | None
) -> ChildExit:
    """Signals sent to us are passed on; what the terminal sent to us it has sent to the child too."""
    heard = {signal.SIGCHLD, *FORWARDED_SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    libc = ctypes.CDLL(None)
    ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if ignored:  # as whoever started us had it: then nobody is told of a child's end
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def as_if_alone() -> None:
        if ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if sys.platform == "linux":  # who kills us for good means the script
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        child = subprocess.Popen(command, env=environment, preexec_fn=as_if_alone, **streams)
        ending, interrupted = ChildStopper(child, should_stop), False
        while child.poll() is None:
            seconds = ending.check()
            told = signal.sigwaitinfo(heard) if seconds is None else signal.sigtimedwait(heard, seconds)
            if told is None:
                continue
            interrupted = interrupted or told.si_signo == signal.SIGINT
            if told.si_signo != signal.SIGCHLD and told.si_code <= 0:  # above: by the kernel, for the terminal
                child.send_signal(told.si_signo)
        while signal.sigtimedwait(heard, 0) is not None:  # they were the script's, and it has ended
            pass
        return ChildExit(child.pid, child.returncode, interrupted)
    finally:
        if ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_like_child(code: int) -> NoReturn:
    """End this process as the child has ended: with its exit code, or killed by the same signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0 and sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(OSError):  # SIGKILL cannot be set, and needs not
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(128 - code if code < 0 else code)
