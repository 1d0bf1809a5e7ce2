"""Calls a function in a fresh process, forked from a server process that has only imported torch and the benchmark."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from benchmarks.faults.single_run import CORES
from penstock.errors import PenstockError

T = TypeVar("T")
TIMEOUT_S = 180.0
EXIT_TIMEOUT_S = 10.0
"""Seconds that the process may take to exit after it has sent its result."""

_context = get_context("forkserver")
_context.set_forkserver_preload(["torch", "benchmarks.plan.single_run"])


def fresh(function: Callable[..., T], *args: Any, timeout_s: float = TIMEOUT_S) -> T:
    """Return the result of `function(*args)` in a fresh process; raise PenstockError if it fails, dies or times out."""
    receiving, sending = _context.Pipe(duplex=False)
    child = _context.Process(target=_send_result, args=(sending, function, args))
    child.start()
    sending.close()
    try:
        if not receiving.poll(timeout_s):
            child.kill()
            raise PenstockError(f"{function.__name__}{args}: no answer in {timeout_s:.0f} s")
        failed, answer = receiving.recv()
    except EOFError:
        raise PenstockError(f"{function.__name__}{args}: ended without an answer") from None
    finally:
        receiving.close()
        child.join(EXIT_TIMEOUT_S)
        child.kill()
        child.join()
    if failed:
        raise PenstockError(f"{function.__name__}{args}: {answer}")
    result: T = answer
    return result


def _send_result(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    try:
        answer = (False, function(*args))
    except Exception as error:
        answer = (True, f"{type(error).__name__}: {error}")
    pipe.send(answer)
    pipe.close()
