"""Processes that keep cores busy as decoding does, for as long as something is measured beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import WorkerCrash

_LOAD_PROGRAM = """
import os, signal, sys, threading, zlib

def follow_parent():
    sys.stdin.buffer.read()
    os._exit(0)

signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=follow_parent, daemon=True).start()
packed = zlib.compress(os.urandom(1 << 16) * 16)
print("burning", flush=True)
while True:
    zlib.decompress(packed)
"""
"""Inflating takes a core and moves memory, which a bare loop would not. A Ctrl-C is for whoever started it."""


@contextmanager
def cpu_load(processes: int) -> Iterator[None]:
    """So many busy processes until the block ends; they are busy when it begins."""
    burners: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            command = [sys.executable, "-I", "-S", "-c", _LOAD_PROGRAM]
            burners.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for burner in burners:
            assert burner.stdout is not None
            if burner.stdout.readline().strip() != b"burning":
                raise WorkerCrash("a process that should keep a core busy did not start", stage="probe")
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.communicate()
