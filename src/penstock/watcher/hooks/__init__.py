"""Hooks that watch an unchanged script: a few patches of torch's entry points, all of which are undone at the end.

`install` puts them in. loaders.py and next_batch.py time the wait for each batch; forward.py, optimizer.py, device.py
and pauses.py time the phases of a step and report them to phases.py; in_use.py notes what the training uses already.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from penstock.recording.writer import Recorder
from penstock.watcher.device_time import DeferredSteps, cuda_timer
from penstock.watcher.hooks.device import watch_device, watch_graph_captures
from penstock.watcher.hooks.forward import ForwardHook
from penstock.watcher.hooks.in_use import InUse
from penstock.watcher.hooks.loaders import PenstockLoaderHooks, TorchLoaderHooks
from penstock.watcher.hooks.optimizer import watch_backward_and_optimizer
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.pauses import watch_pauses
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.script import autostart
from penstock.watcher.start import WatchedRun


def _patch_loader_classes(hooks: tuple[TorchLoaderHooks, PenstockLoaderHooks], patches: Patches) -> None:
    """Patch the loader classes that the script has imported, and those that it imports later."""

    def patch(loader_class: Any) -> None:
        for each in hooks:
            each.patch_class(loader_class, patches)

    for loader_class in autostart.imported_loader_classes():
        patch(loader_class)
    autostart.on_loader_import.append(patch)
    patches.on_undo(lambda: autostart.on_loader_import.remove(patch))


def install(run: WatchedRun) -> Callable[[], None]:
    """Watch every loader and the phases of every step in this process, and return a function that undoes it.

    A forked child, such as a worker of a DataLoader, gets torch without the patches.
    """
    session, patches = run.session, Patches()
    timer = None
    if torch.version.cuda or torch.version.hip:  # asking the driver instead would be the first use of the GPU
        timer = cuda_timer(session)
        session._sinks[:] = [
            DeferredSteps(sink, timer) if isinstance(sink, Recorder) else sink for sink in session._sinks
        ]
    phases = PhaseHooks(session, timer)
    patches.on_undo(phases.remove_all)
    try:
        in_use = InUse(session)
        session.on_profiled_step = ForwardHook(phases, patches, in_use).begin_step
        torch_loaders = TorchLoaderHooks(run, phases)
        torch_loaders.install(patches)
        _patch_loader_classes((torch_loaders, PenstockLoaderHooks(run, phases)), patches)
        watch_backward_and_optimizer(phases, patches, in_use)
        watch_pauses(phases, patches)
        if timer is not None:
            watch_device(phases, patches, in_use)
            watch_graph_captures(timer, patches, in_use)
    except Exception as error:
        patches.undo()
        session.fail(error)

    def forked() -> None:
        session.off = True
        patches.undo()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forked)
    return patches.undo
