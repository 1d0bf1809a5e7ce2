"""A child process that stands where we stand: our terminal, our signals, and its end becomes ours."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
PASSED_ON = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
_PR_SET_PDEATHSIG = 1


def run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
    """Its pid and its exit code, which is minus the signal's number if one killed it."""
    if hasattr(signal, "sigwaitinfo"):
        return _run_and_listen(command, environment)
    child = subprocess.Popen(command, env=environment)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT,)}
    for number in set(PASSED_ON) - {signal.SIGINT}:  # the terminal gives a Ctrl-C to both of us
        before[number] = signal.signal(number, lambda number, _: child.send_signal(number))
    try:
        return child.pid, child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_and_listen(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
    """Signals sent to us are passed on; what the terminal sent to us it has sent to the child too."""
    heard = {signal.SIGCHLD, *PASSED_ON}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    libc = ctypes.CDLL(None)

    def as_if_alone() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if sys.platform == "linux":  # who kills us for good means the script
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        child = subprocess.Popen(command, env=environment, preexec_fn=as_if_alone)
        while child.poll() is None:
            told = signal.sigwaitinfo(heard)
            if told.si_signo != signal.SIGCHLD and told.si_code <= 0:  # above: by the kernel, for the terminal
                child.send_signal(told.si_signo)
        while signal.sigtimedwait(heard, 0) is not None:  # they were the script's, and it has ended
            pass
        return child.pid, child.returncode
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_like(code: int) -> NoReturn:
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
