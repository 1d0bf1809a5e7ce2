"""A script that knows nothing of us, watched: few patches, at torch's own doors, and all of them undone at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from penstock.recording.writer import Recorder
from penstock.watcher.device_time import DeferredSteps, cuda_timer
from penstock.watcher.hooks.device import watch_captures, watch_device
from penstock.watcher.hooks.forward import ForwardHook
from penstock.watcher.hooks.loaders import PenstockLoaderHooks, TorchLoaderHooks
from penstock.watcher.hooks.optimizer import watch_update
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.pauses import watch_pauses
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.script import autostart
from penstock.watcher.start import WatchedRun


def _watch_loaders(kinds: tuple[TorchLoaderHooks, PenstockLoaderHooks], patches: Patches) -> None:
    """Those there are, and those that are imported later."""

    def meet(kind: Any) -> None:
        for each in kinds:
            each.meet(kind, patches)

    for kind in autostart.imported_loader_classes():
        meet(kind)
    autostart.on_loader_import.append(meet)
    patches.also(lambda: autostart.on_loader_import.remove(meet))


def install(watching: WatchedRun) -> Callable[[], None]:
    """Watch every loader and the phases of every step, in this process; returns what ends it.

    A forked child, such as a worker of a DataLoader, finds torch as it was.
    """
    session, patches = watching.session, Patches()
    timer = None
    if torch.version.cuda or torch.version.hip:  # by the build: asking the driver would be the first use of the device
        timer = cuda_timer(session)
        session._sinks[:] = [
            DeferredSteps(sink, timer) if isinstance(sink, Recorder) else sink for sink in session._sinks
        ]
    phases = PhaseHooks(session, timer)
    patches.also(phases.end)
    try:
        session.begins = ForwardHook(phases, patches).step
        loaders = TorchLoaderHooks(watching, phases)
        loaders.install(patches)
        _watch_loaders((loaders, PenstockLoaderHooks(watching, phases)), patches)
        watch_update(phases, patches)
        watch_pauses(phases, patches)
        if timer is not None:
            watch_device(phases, patches)
            watch_captures(timer, patches)
    except Exception as error:
        patches.undo()
        session.fail(error)

    def forked() -> None:
        session.off = True
        patches.undo()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forked)
    return patches.undo
