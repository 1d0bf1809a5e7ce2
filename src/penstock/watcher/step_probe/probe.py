"""Stands between a script and its loaders: after some steps, the loaders that it trains on give one batch for ever."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader as torch_loader

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.recording.format import EventLine
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.session import Session
from penstock.watcher.step_probe.cpu_load import cpu_load
from penstock.watcher.step_probe.probed_loaders import (
    TRAINING_STEPS,
    ProbedLoader,
    ProbedPenstockLoader,
    ProbedTorchLoader,
)
from penstock.watcher.step_probe.stages import ProbedStep, ProbeEnvironment, ProbeStages, Stage, StageTime

MAX_PROBE_S = 300.0
"""Since the first batch: whatever is not measured by then is not waited for."""
LOADER_ATTRIBUTE = "_penstock_feed"
"""The attribute by which an iterator of torch's knows its loader's feed."""

DrawBatch = Callable[[], Any]


class ProbeReporter(Protocol):
    """To whoever started the script."""

    def stage(self, name: Stage, timed: StageTime, *, burners: int, samples: int | None, device: str) -> None:
        """One measurement is complete."""
        ...

    def end(self, why: str) -> None:
        """The script may be ended: all is measured, or why it is not."""
        ...


class ScriptStepProbe:
    """Its patches lie beneath those of the watcher, which sees the batches that are given again as any other."""

    def __init__(self, seconds: float, tell: ProbeReporter, clock: Clock = SYSTEM_CLOCK) -> None:
        self._seconds = seconds
        self._tell = tell
        self._clock = clock
        self._pid = os.getpid()
        self._feeds: weakref.WeakKeyDictionary[Any, ProbedLoader] = weakref.WeakKeyDictionary()
        self._gradients = 0
        """Times that they were computed, or used."""
        self._leader: ProbedLoader | None = None
        """The loader by whose batches steps are counted."""
        self._others = 0
        """Batches of other loaders that feed the training, since the leader was last asked."""
        self._course: ProbeStages | None = None
        self._ended = False
        self._first_s: float | None = None
        self._asked_s = self._got_s = 0.0
        """Of the leader's last batch."""
        self._disturbed = False
        """Whether the step under way has something else in it: an evaluation, the start or the end of a pass."""

    def install(self, patches: Patches) -> None:
        """Before the watcher's own."""
        make, advance = torch_loader.DataLoader.__iter__, torch_loader._BaseDataLoaderIter.__next__

        def __iter__(loader: Any) -> Any:
            if os.getpid() != self._pid:  # a worker's own
                return make(loader)
            return self._begin(self._feed_of(loader, lambda: ProbedTorchLoader(loader)), lambda: make(loader))

        def __next__(iterator: Any) -> Any:
            feed = iterator.__dict__.get(LOADER_ATTRIBUTE)
            return advance(iterator) if feed is None else self._next(feed, lambda: advance(iterator))

        patches.set(torch_loader.DataLoader, "__iter__", __iter__)
        patches.set(torch_loader._BaseDataLoaderIter, "__next__", __next__)
        self._install_ours(patches)
        self._count_gradients(patches)
        patches.on_undo(self._close)

    def _install_ours(self, patches: Patches) -> None:
        module: Any = sys.modules.get("penstock.loader")
        if module is None:
            return
        make = module.Loader.__iter__

        def __iter__(loader: Any) -> Any:
            if os.getpid() != self._pid:
                return make(loader)
            feed = self._feed_of(loader, lambda: ProbedPenstockLoader(loader, self._clock))
            return self._begin(feed, lambda: _ProbedEpoch(make(loader), lambda draw: self._next(feed, draw)))

        patches.set(module.Loader, "__iter__", __iter__)

    def _count_gradients(self, patches: Patches) -> None:
        compute = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self._gradients += 1
            return compute(*args, **kwargs)

        def used(*_: Any) -> None:
            self._gradients += 1

        patches.set(torch.autograd, "backward", backward)
        patches.on_undo(register_optimizer_step_post_hook(used).remove)

    # -- passes ----------------------------------------------------------------------------------------------------

    def _feed_of(self, loader: Any, meet: Callable[[], ProbedLoader]) -> ProbedLoader:
        if loader not in self._feeds:
            self._feeds[loader] = meet()
        return self._feeds[loader]

    def _begin(self, feed: ProbedLoader, make: Callable[[], Any]) -> Any:
        self._disturbed = True  # what lies between two passes is no step
        if self._keeping and feed.has_kept_batch:  # it has no end, and its workers are not even started
            iterator: Any = _ProbedEpoch(iter(()), lambda draw: self._next(feed, draw))
        else:
            iterator = make()
            setattr(iterator, LOADER_ATTRIBUTE, feed)
        feed.epoch_started(iterator)
        return iterator

    @property
    def _keeping(self) -> bool:
        return self._course is not None and self._course.repeats_batches

    # -- batches ---------------------------------------------------------------------------------------------------

    def _next(self, feed: ProbedLoader, draw: DrawBatch) -> Any:
        asked_s = self._clock.now()
        try:
            self._asked(feed, asked_s)
        except Exception as error:
            self._fail(error)
        batch = feed.repeated_batch(draw) if self._keeping and feed.trained_on else feed.next_batch(draw)
        if feed is self._leader:
            self._asked_s, self._got_s, self._disturbed = asked_s, self._clock.now(), feed.first_of_epoch
        return batch

    def _asked(self, feed: ProbedLoader, now: float) -> None:
        feed.batch_requested(self._gradients)
        if self._ended:
            return
        self._first_s = now if self._first_s is None else self._first_s
        if feed is self._leader and self._course is not None:
            self._others = 0
            took = ProbedStep(self._got_s - self._asked_s, now - self._got_s)
            self._course.step(None if self._disturbed else took)
            if self._course.finished:
                self._end("")
        else:
            self._meet(feed)
        if now - self._first_s > MAX_PROBE_S:
            unseen = "no training step was seen" if self._leader is None else "not all was measured"
            self._end(f"{unseen} in {MAX_PROBE_S:.0f} s")

    def _meet(self, feed: ProbedLoader) -> None:
        """Another than the leader. It takes its place if that is not used any more: made anew for every epoch."""
        self._disturbed |= not feed.trained_on
        self._others += feed.trained_on
        if not feed.trained_on:
            return
        if self._course is None:
            self._leader = feed
            around = ProbeEnvironment(self._clock, _wait_for_device, cpu_load, self._report)
            self._course = ProbeStages(feed, self._feeding, self._seconds, around)
        elif self._others > TRAINING_STEPS:
            self._leader = self._course.step_loader = feed

    def _feeding(self) -> list[ProbedLoader]:
        return [feed for feed in self._feeds.values() if feed.trained_on]

    # -- what comes of it ------------------------------------------------------------------------------------------

    def _report(self, stage: Stage, timed: StageTime, burners: int) -> None:
        samples = None if self._leader is None else self._leader.samples
        device = "cpu" if _cuda() is None else "cuda"
        self._tell.stage(stage, timed, burners=burners, samples=samples, device=device)

    def _fail(self, error: Exception) -> None:
        """The script is to be ended, and the user told: there is nothing else to run it for."""
        self._end(f"the probe failed: {type(error).__name__}: {error}")

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = True
            self._close()
            self._tell.end(why)

    def _close(self) -> None:
        if self._course is not None and os.getpid() == self._pid:
            self._course.close()


class _ProbedEpoch:
    """A pass over what is not torch's: its batches are drawn through the probe."""

    def __init__(self, batches: Iterator[Any], take: Callable[[DrawBatch], Any]) -> None:
        self._batches = batches
        self._take = take

    def __iter__(self) -> _ProbedEpoch:
        return self

    def __next__(self) -> Any:
        return self._take(lambda: next(self._batches))


def _cuda() -> Any:
    """None where the script has not used it: asking for more would be its first use."""
    cuda: Any = torch.cuda
    return cuda if cuda.is_initialized() else None


def _wait_for_device() -> None:
    if (cuda := _cuda()) is not None:
        cuda.synchronize()


def begin_probe(session: Session, seconds: float, enough: Path | None) -> Callable[[], None]:
    """Before the watcher's hooks are installed; returns what ends it. `enough` is made when the script may be ended."""
    patches = Patches()
    ScriptStepProbe(seconds, _ProbeLines(session, enough)).install(patches)
    return patches.undo


class _ProbeLines:
    """Events named "probe": `penstock.probe.step.read_script_probe` reads them."""

    def __init__(self, session: Session, enough: Path | None) -> None:
        self._session = session
        self._enough = enough

    def stage(self, name: Stage, timed: StageTime, *, burners: int, samples: int | None, device: str) -> None:
        self._put(timed.seconds, stage=name, steps=timed.steps, burners=burners, samples=samples, device=device)

    def end(self, why: str) -> None:
        self._put(stage="end", why=why)
        if self._enough is not None:
            self._enough.touch()

    def _put(self, seconds: float = 0.0, **detail: object) -> None:
        self._session.put(EventLine(what="probe", at_s=self._session.now(), seconds=seconds, detail=detail))
