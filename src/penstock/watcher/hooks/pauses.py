"""What interrupts a step: a checkpoint, the log. (The garbage collector is watched in every session.)

A log is what goes through `logging`, TensorBoard's writer, or a file that is synced. `print` is left alone: too many
look at it; a step that hangs in it shows in the looks at the main thread, as `write`.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from penstock.recording.format import EventLine
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks

_STORAGES = (torch.UntypedStorage, torch.TypedStorage)
"""A tensor that is pickled has its own saved, to memory: that is no checkpoint."""
WRITER = ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_text", "flush")


def watch_pauses(phases: PhaseHooks, patches: Patches) -> None:
    """Each is a phase inside a step; checkpoints are events too, wherever they happen."""
    save = _told("checkpoint", phases, torch.serialization.save)
    for owner in (torch, torch.serialization):
        patches.set(owner, "save", save)
    patches.set(logging.Handler, "handle", phases.around("log", logging.Handler.handle))
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            patches.set(os, name, phases.around("log", getattr(os, name)))
    board = sys.modules.get("torch.utils.tensorboard.writer")
    if board is not None:
        for name in WRITER:
            patches.set(board.SummaryWriter, name, phases.around("log", getattr(board.SummaryWriter, name)))


def _told(what: str, phases: PhaseHooks, function: Callable[..., Any]) -> Callable[..., Any]:
    session = phases.session
    timed = phases.around(what, function)

    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], _STORAGES):
            return function(*args, **kwargs)
        began = session.now()
        try:
            return timed(*args, **kwargs)
        finally:
            if not session.off:
                with session.guard():
                    session.put(EventLine(what=what, at_s=began, seconds=session.now() - began))

    return told
