"""Where every thread of this process is in Python: `sys._current_frames()`, without the deadlock it has in Python 3.11.

There it makes objects while it holds a lock that a thread needs to end. If that sets the garbage collector off, a
finalizer or a callback may give the interpreter away to a thread that is just ending: it waits for the one lock and has
the other, and the program stands still. From 3.12 on, the collector waits until nobody holds such locks.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import FrameType

_looking = threading.Lock()
"""Held while the collector is off: by one of us at a time, and never while the process forks."""


def frames_by_thread() -> dict[int, FrameType]:
    """By `threading.get_ident()`."""
    if sys.version_info >= (3, 12):
        return sys._current_frames()
    with _looking:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_enabled:
                gc.enable()


if sys.version_info < (3, 12) and hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_looking.acquire, after_in_parent=_looking.release, after_in_child=_looking.release)
