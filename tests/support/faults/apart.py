"""Processes beside the training and not its children: nobody who looks at the run may take them for a part of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import PenstockError

_PROGRAMS = Path(__file__).parent / "programs"
_LAUNCH = "import subprocess, sys; subprocess.Popen([sys.executable, '-P', *sys.argv[1:]], start_new_session=True)"


@contextmanager
def apart(program: str, *arguments: str) -> Iterator[str]:
    """Run one of our programs as nobody's child until the block ends; gives the line it prints when it is ready.

    The program ends when its input does, so it cannot outlive us, however we end.
    """
    command = [sys.executable, "-c", _LAUNCH, str(_PROGRAMS / f"{program}.py"), *arguments]
    launcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    try:
        launcher.wait()
        ready = launcher.stdout.readline().strip()
        if not ready:
            raise PenstockError(f"the program {program} did not start", stage="faults")
        yield ready
    finally:
        with suppress(OSError):  # it may have ended already
            launcher.stdin.write("\n")  # workers forked meanwhile may hold the pipe open: closing it is not enough
            launcher.stdin.flush()
        with suppress(OSError):
            launcher.stdin.close()
        launcher.stdout.read()  # until the program has gone
        launcher.stdout.close()
