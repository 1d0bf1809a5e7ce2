"""Processes that keep cores busy, as decoding would, while a step is measured."""

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
print("started", flush=True)
while True:
    zlib.decompress(packed)
"""
"""Decompresses without end, because that uses a core and memory bandwidth; an empty loop would use only a core.

It ends when its parent ends. It ignores Ctrl-C, which the terminal sends to it as well: the parent handles that."""


@contextmanager
def cpu_load(processes: int) -> Iterator[None]:
    """Run this number of busy processes from the start of the block to its end."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            command = [sys.executable, "-I", "-S", "-c", _LOAD_PROGRAM]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"started":
                raise WorkerCrash("a process that should keep a core busy did not start", stage="probe")
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate()
