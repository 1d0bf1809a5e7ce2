"""The current Python frame of every thread: `sys._current_frames()` without the deadlock that it has in Python 3.11.

In 3.11 the function creates objects while it holds a lock that a thread needs in order to end. If this triggers the
garbage collector, a finalizer or a callback may switch to a thread that is just ending. That thread holds the
interpreter's lock and waits for the other one, so the program hangs. From 3.12 on, the collector does not run while
such locks are held.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import FrameType

_gc_off = threading.Lock()
"""Held while the collector is switched off: by one thread at a time, and never while the process forks."""


def frames_by_thread() -> dict[int, FrameType]:
    """Return the frame of each thread, by `threading.get_ident()`."""
    if sys.version_info >= (3, 12):
        return sys._current_frames()
    with _gc_off:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_enabled:
                gc.enable()


if sys.version_info < (3, 12) and hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_gc_off.acquire, after_in_parent=_gc_off.release, after_in_child=_gc_off.release)
