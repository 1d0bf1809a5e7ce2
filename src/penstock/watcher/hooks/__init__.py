"""A script that knows nothing of us, watched: few patches, at torch's own doors, and all of them undone at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from penstock.recording.writer import Recorder
from penstock.watcher.device_time import Held, cuda_timer
from penstock.watcher.hooks.device import watch_captures, watch_device
from penstock.watcher.hooks.forward import Forward
from penstock.watcher.hooks.loaders import Loaders
from penstock.watcher.hooks.optimizer import watch_update
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.pauses import watch_pauses
from penstock.watcher.hooks.penstock_loaders import OurLoaders
from penstock.watcher.hooks.phases import Phases
from penstock.watcher.script import autostart
from penstock.watcher.start import Watching


def _watch_loaders(kinds: tuple[Loaders, OurLoaders], patches: Patches) -> None:
    """Those there are, and those that are imported later."""

    def meet(kind: Any) -> None:
        for each in kinds:
            each.meet(kind, patches)

    for kind in autostart.imported():
        meet(kind)
    autostart.late.append(meet)
    patches.also(lambda: autostart.late.remove(meet))


def install(watching: Watching) -> Callable[[], None]:
    """Watch every loader and the phases of every step, in this process; returns what ends it.

    A forked child, such as a worker of a DataLoader, finds torch as it was.
    """
    session, patches = watching.session, Patches()
    timer = None
    if torch.version.cuda or torch.version.hip:  # by the build: asking the driver would be the first use of the device
        timer = cuda_timer(session)
        session._sinks[:] = [Held(sink, timer) if isinstance(sink, Recorder) else sink for sink in session._sinks]
    phases = Phases(session, timer)
    patches.also(phases.end)
    try:
        session.begins = Forward(phases, patches).step
        loaders = Loaders(watching, phases)
        loaders.install(patches)
        _watch_loaders((loaders, OurLoaders(watching, phases)), patches)
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
