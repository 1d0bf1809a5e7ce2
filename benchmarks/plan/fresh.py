"""A function in a process of its own that has done nothing but import torch: forked from one that stays like that."""

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
ENDING_S = 10.0
"""For a process that has given its answer."""

_context = get_context("forkserver")
_context.set_forkserver_preload(["torch", "benchmarks.plan.single_run"])


def fresh(work: Callable[..., T], *given: Any, timeout_s: float = TIMEOUT_S) -> T:
    """What `work(*given)` returns there; PenstockError where it raised, died or took too long."""
    ours, theirs = _context.Pipe(duplex=False)
    child = _context.Process(target=_answer, args=(theirs, work, given))
    child.start()
    theirs.close()
    try:
        if not ours.poll(timeout_s):
            child.kill()
            raise PenstockError(f"{work.__name__}{given}: no answer in {timeout_s:.0f} s")
        failed, answer = ours.recv()
    except EOFError:
        raise PenstockError(f"{work.__name__}{given}: ended without an answer") from None
    finally:
        ours.close()
        child.join(ENDING_S)
        child.kill()
        child.join()
    if failed:
        raise PenstockError(f"{work.__name__}{given}: {answer}")
    found: T = answer
    return found


def _answer(pipe: Connection, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    try:
        answer = (False, work(*given))
    except Exception as error:
        answer = (True, f"{type(error).__name__}: {error}")
    pipe.send(answer)
    pipe.close()
