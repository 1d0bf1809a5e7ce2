"""Keep cores busy with COUNT processes until the standard input ends: `burn.py COUNT`."""

from __future__ import annotations

import multiprocessing
import os
import sys


def burn() -> None:
    """Compute forever, in a new session: a kernel that divides cores by session would count all processes as one."""
    os.setsid()
    number = 1
    while True:
        number = number * 1103515245 + 12345 & 0x7FFFFFFF


def main() -> None:
    """Start the processes, as daemons so that they end with this one, and print a line when they run."""
    processes = [multiprocessing.Process(target=burn, daemon=True) for _ in range(int(sys.argv[1]))]
    for process in processes:
        process.start()
    print("burning", flush=True)
    sys.stdin.read(1)
    for process in processes:
        process.terminate()


if __name__ == "__main__":
    main()
