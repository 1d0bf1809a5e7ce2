"""Programs that run beside a training, but not as its child processes: the watcher counts them as other programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import PenstockError

_PROGRAMS = Path(__file__).parent / "programs"
_LAUNCH = "import subprocess, sys; subprocess.Popen([sys.executable, '-P', *sys.argv[1:]], start_new_session=True)"
"""A program that starts another one and ends, so that the other one has no parent in our process tree."""


@contextmanager
def detached_process(program: str, *arguments: str) -> Iterator[str]:
    """Run a program of the folder programs/ until the block ends; yield the line that it prints when it is ready.

    The program ends when its standard input does, so it ends with this process even if that is killed.
    """
    command = [sys.executable, "-c", _LAUNCH, str(_PROGRAMS / f"{program}.py"), *arguments]
    launcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    try:
        launcher.wait()
        ready_line = launcher.stdout.readline().strip()
        if not ready_line:
            raise PenstockError(f"the program {program} did not start", stage="faults")
        yield ready_line
    finally:
        with suppress(OSError):  # the program may have ended already
            launcher.stdin.write("\n")  # workers forked meanwhile may hold the pipe open: closing it is not enough
            launcher.stdin.flush()
        with suppress(OSError):
            launcher.stdin.close()
        launcher.stdout.read()  # returns when the program has ended
        launcher.stdout.close()
