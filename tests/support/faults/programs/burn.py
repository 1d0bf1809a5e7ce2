"""Keeps cores busy: `burn.py COUNT`, until its input ends."""

from __future__ import annotations

import multiprocessing
import os
import sys


def burn() -> None:
    """Forever, in a session of its own: a kernel that shares cores out by session would count all burners as one."""
    os.setsid()
    number = 1
    while True:
        number = number * 1103515245 + 12345 & 0x7FFFFFFF


def main() -> None:
    """Burners are daemons: they go when we do."""
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(int(sys.argv[1]))]
    for burner in burners:
        burner.start()
    print("burning", flush=True)
    sys.stdin.read(1)
    for burner in burners:
        burner.terminate()


if __name__ == "__main__":
    main()
