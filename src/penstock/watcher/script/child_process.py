"""A child process that stands in for this one: it has our terminal and gets our signals, and we end as it ends."""

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
"""The option of prctl(2) that sets the signal a process gets when its parent dies."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) if sys.platform != "win32" else (signal.SIGTERM,)
"""The signals that stop a child, in order. SIGINT comes first, as from Ctrl-C, so that the child can clean up."""
GRACE_S = 15.0
"""Seconds from one of these signals to the next."""
POLL_S = 0.05
"""Seconds between two checks whether to stop the child."""

ShouldStop = Callable[[], bool]
"""Returns whether the child is to be stopped."""


class ChildExit(NamedTuple):
    """How a child ended."""

    pid: int
    code: int
    """Its exit code; minus the signal's number if a signal killed it."""
    interrupted: bool
    """Whether Ctrl-C was pressed while it ran. The code alone does not show it: an interpreter that gets Ctrl-C while
    it starts exits with 1."""


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: BinaryIO | None = None,
    should_stop: ShouldStop | None = None,
) -> ChildExit:
    """Run a child until it ends.

    With `output`, the child prints to that file and has no input. Once `should_stop` returns True, the child is
    stopped by STOP_SIGNALS.
    """
    streams: dict[str, Any] = {}
    if output is not None:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    if hasattr(signal, "sigwaitinfo"):
        return _run_and_forward_signals(command, environment, streams, should_stop)
    child = subprocess.Popen(command, env=environment, **streams)
    interrupts: list[int] = []
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))}
    for number in set(FORWARDED_SIGNALS) - {signal.SIGINT}:  # the terminal sends a Ctrl-C to the child as well
        before[number] = signal.signal(number, lambda number, _: child.send_signal(number))
    stopper = ChildStopper(child, should_stop)
    try:
        while child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(stopper.check())
        return ChildExit(child.pid, child.returncode, bool(interrupts))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ChildStopper:
    """Stops a child once it should stop: sends one signal after the other until it ends."""

    def __init__(
        self, child: subprocess.Popen[bytes], should_stop: ShouldStop | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._child = child
        self._should_stop = should_stop
        self._now = now
        self._signals = list(STOP_SIGNALS)
        self._next_signal_s = float("-inf")

    def check(self) -> float | None:
        """Send the next signal if it is due, and return the seconds until the next check; None if there is none."""
        if self._should_stop is None:
            return None
        if self._signals and self._now() >= self._next_signal_s and self._should_stop():
            self._child.send_signal(self._signals.pop(0))
            self._next_signal_s = self._now() + GRACE_S
        return POLL_S


def _run_and_forward_signals(
    command: Sequence[str], environment: Mapping[str, str], streams: Mapping[str, Any], should_stop: ShouldStop | None
) -> ChildExit:
    """Run a child, and forward the signals that other processes send to us.

    Signals that the terminal sends are not forwarded, because the child gets them from the terminal as well.
    """
    handled = {signal.SIGCHLD, *FORWARDED_SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    libc = ctypes.CDLL(None)
    ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if ignored:  # inherited from our parent; the kernel would not report the child's end
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def restore_signals() -> None:
        if ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if sys.platform == "linux":  # a SIGKILL of this process is meant for the script, and cannot be forwarded
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        child = subprocess.Popen(command, env=environment, preexec_fn=restore_signals, **streams)
        stopper, interrupted = ChildStopper(child, should_stop), False
        while child.poll() is None:
            seconds = stopper.check()
            received = signal.sigwaitinfo(handled) if seconds is None else signal.sigtimedwait(handled, seconds)
            if received is None:
                continue
            interrupted = interrupted or received.si_signo == signal.SIGINT
            sent_by_kernel = received.si_code > 0  # for the terminal
            if received.si_signo != signal.SIGCHLD and not sent_by_kernel:
                child.send_signal(received.si_signo)
        while signal.sigtimedwait(handled, 0) is not None:  # drop signals for the script that come after its end
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
        with suppress(OSError):  # the handler of SIGKILL cannot be set, which is not needed either
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(128 - code if code < 0 else code)
