"""Pauses inside a step: checkpoints and logging. The garbage collector is watched in every session: see gc_watch.py.

Logging is what goes through `logging`, the SummaryWriter of TensorBoard, or a file that is synced. `print` is not
replaced, because too much code inspects it; a step that blocks in it shows as `write` in the stack samples of the main
thread.
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
"""Pickling a tensor calls torch.save with its storage, into memory. That is not a checkpoint."""
SUMMARY_WRITER_METHODS = ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_text", "flush")


def watch_pauses(phases: PhaseHooks, patches: Patches) -> None:
    """Time checkpoints and logging as phases of a step. A checkpoint is an event too, also between steps."""
    save = _with_event("checkpoint", phases, torch.serialization.save)
    for owner in (torch, torch.serialization):
        patches.set(owner, "save", save)
    patches.set(logging.Handler, "handle", phases.wrap("log", logging.Handler.handle))
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            patches.set(os, name, phases.wrap("log", getattr(os, name)))
    tensorboard = sys.modules.get("torch.utils.tensorboard.writer")
    if tensorboard is not None:
        writer = tensorboard.SummaryWriter
        for name in SUMMARY_WRITER_METHODS:
            patches.set(writer, name, phases.wrap("log", getattr(writer, name)))


def _with_event(what: str, phases: PhaseHooks, function: Callable[..., Any]) -> Callable[..., Any]:
    session = phases.session
    timed = phases.wrap(what, function)

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], _STORAGES):
            return function(*args, **kwargs)
        began = session.now()
        try:
            return timed(*args, **kwargs)
        finally:
            if not session.off:
                with session.guard():
                    session.put(EventLine(what=what, at_s=began, seconds=session.now() - began))

    return recorded
