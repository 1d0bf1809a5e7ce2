"""Patches the loaders of a script so that its training step can be measured alone, on one batch delivered repeatedly.

ScriptStepProbe times the steps of the script and passes them to ProbeStages, which decides what is measured when. Its
results are recorded as events named "probe".
"""

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
"""Seconds after the request for the first batch at which the probe ends, even if some stages were not measured."""
LOADER_ATTRIBUTE = "_penstock_probed_loader"
"""The attribute of torch's iterators that holds the ProbedLoader of their loader."""

DrawBatch = Callable[[], Any]
"""Returns the next batch of the loader itself."""


class ProbeReporter(Protocol):
    """Receives the results of a probe."""

    def stage(self, name: Stage, timed: StageTime, *, burners: int, samples: int | None, device: str) -> None:
        """Report a measured stage: `burners` load processes ran beside it, and a batch had `samples` samples."""
        ...

    def end(self, why: str) -> None:
        """Report that the script may be ended. `why` says what was not measured; it is empty if all was."""
        ...


class ScriptStepProbe:
    """Measures the training step of the script that runs in this process.

    Its patches lie beneath those of the watcher, to which a repeated batch is like any other batch.
    """

    def __init__(self, seconds: float, reporter: ProbeReporter, clock: Clock = SYSTEM_CLOCK) -> None:
        self._seconds = seconds
        """Seconds that each stage is measured."""
        self._reporter = reporter
        self._clock = clock
        self._pid = os.getpid()
        self._loaders: weakref.WeakKeyDictionary[Any, ProbedLoader] = weakref.WeakKeyDictionary()
        self._gradients = 0
        """The number of backward passes and optimizer steps so far."""
        self._step_loader: ProbedLoader | None = None
        """The loader whose batches define the steps."""
        self._batches_of_others = 0
        """Batches of other training loaders that were requested since the last batch of the step loader."""
        self._stages: ProbeStages | None = None
        """None until a loader is used for training."""
        self._ended = False
        self._first_request_s: float | None = None
        self._requested_s = self._received_s = 0.0
        """When the last batch of the step loader was requested and received."""
        self._disturbed = False
        """Whether the current step contains something else: an evaluation, or the start or the end of an epoch."""

    def install(self, patches: Patches) -> None:
        """Patch the loaders and the backward pass. This must come before the watcher installs its own patches."""
        make_iterator = torch_loader.DataLoader.__iter__
        advance = torch_loader._BaseDataLoaderIter.__next__

        def __iter__(loader: Any) -> Any:
            if os.getpid() != self._pid:  # in a forked worker, for a loader inside the dataset
                return make_iterator(loader)
            probed = self._get_or_add(loader, lambda: ProbedTorchLoader(loader))
            return self._begin_epoch(probed, lambda: make_iterator(loader))

        def __next__(iterator: Any) -> Any:
            probed = iterator.__dict__.get(LOADER_ATTRIBUTE)
            return advance(iterator) if probed is None else self._next(probed, lambda: advance(iterator))

        patches.set(torch_loader.DataLoader, "__iter__", __iter__)
        patches.set(torch_loader._BaseDataLoaderIter, "__next__", __next__)
        self._patch_penstock_loader(patches)
        self._count_gradients(patches)
        patches.on_undo(self._close)

    def _patch_penstock_loader(self, patches: Patches) -> None:
        module: Any = sys.modules.get("penstock.loader")
        if module is None:
            return
        make_iterator = module.Loader.__iter__

        def __iter__(loader: Any) -> Any:
            if os.getpid() != self._pid:
                return make_iterator(loader)
            probed = self._get_or_add(loader, lambda: ProbedPenstockLoader(loader, self._clock))
            return self._begin_epoch(
                probed, lambda: _ProbedEpoch(make_iterator(loader), lambda draw: self._next(probed, draw))
            )

        patches.set(module.Loader, "__iter__", __iter__)

    def _count_gradients(self, patches: Patches) -> None:
        run_backward = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self._gradients += 1
            return run_backward(*args, **kwargs)

        def after_optimizer_step(*_: Any) -> None:
            self._gradients += 1

        patches.set(torch.autograd, "backward", backward)
        patches.on_undo(register_optimizer_step_post_hook(after_optimizer_step).remove)

    # -- epochs ----------------------------------------------------------------------------------------------------

    def _get_or_add(self, loader: Any, make: Callable[[], ProbedLoader]) -> ProbedLoader:
        if loader not in self._loaders:
            self._loaders[loader] = make()
        return self._loaders[loader]

    def _begin_epoch(self, probed: ProbedLoader, make_iterator: Callable[[], Any]) -> Any:
        """Return the iterator for an epoch of this loader."""
        self._disturbed = True  # the time between two epochs is not a step
        if self._repeats_batches and probed.has_repeated_batch:  # an endless epoch, which starts no workers
            iterator: Any = _ProbedEpoch(iter(()), lambda draw: self._next(probed, draw))
        else:
            iterator = make_iterator()
            setattr(iterator, LOADER_ATTRIBUTE, probed)
        probed.epoch_started(iterator)
        return iterator

    @property
    def _repeats_batches(self) -> bool:
        return self._stages is not None and self._stages.repeats_batches

    # -- batches ---------------------------------------------------------------------------------------------------

    def _next(self, probed: ProbedLoader, draw: DrawBatch) -> Any:
        """Return the next batch of a loader, or its repeated one."""
        requested_s = self._clock.now()
        try:
            self._batch_requested(probed, requested_s)
        except Exception as error:
            self._fail(error)
        repeated = self._repeats_batches and probed.trained_on
        batch = probed.repeated_batch(draw) if repeated else probed.next_batch(draw)
        if probed is self._step_loader:
            self._requested_s, self._received_s = requested_s, self._clock.now()
            self._disturbed = probed.first_of_epoch
        return batch

    def _batch_requested(self, probed: ProbedLoader, now: float) -> None:
        """End a step if the step loader's batch is requested, and end the probe if it is complete or takes too long."""
        probed.batch_requested(self._gradients)
        if self._ended:
            return
        self._first_request_s = now if self._first_request_s is None else self._first_request_s
        if probed is self._step_loader and self._stages is not None:
            self._batches_of_others = 0
            step = ProbedStep(self._received_s - self._requested_s, now - self._received_s)
            self._stages.step(None if self._disturbed else step)
            if self._stages.finished:
                self._end("")
        else:
            self._other_batch_requested(probed)
        if now - self._first_request_s > MAX_PROBE_S:
            missing = "no training step was seen" if self._step_loader is None else "not all was measured"
            self._end(f"{missing} in {MAX_PROBE_S:.0f} s")

    def _other_batch_requested(self, probed: ProbedLoader) -> None:
        """Handle a batch of a loader that is not the step loader.

        1. A loader that is not used for training, such as one for evaluation, disturbs the current step.
        2. The first loader that is used for training becomes the step loader.
        3. A later one replaces it when the step loader is not used any more: some scripts make a new loader per epoch.
        """
        if not probed.trained_on:
            self._disturbed = True
            return
        self._batches_of_others += 1
        if self._stages is None:
            self._step_loader = probed
            environment = ProbeEnvironment(self._clock, _wait_for_device, cpu_load, self._report)
            self._stages = ProbeStages(probed, self._training_loaders, self._seconds, environment)
        elif self._batches_of_others > TRAINING_STEPS:
            self._step_loader = self._stages.step_loader = probed

    def _training_loaders(self) -> list[ProbedLoader]:
        return [probed for probed in self._loaders.values() if probed.trained_on]

    # -- results ---------------------------------------------------------------------------------------------------

    def _report(self, stage: Stage, timed: StageTime, burners: int) -> None:
        samples = None if self._step_loader is None else self._step_loader.samples
        device = "cpu" if _initialized_cuda() is None else "cuda"
        self._reporter.stage(stage, timed, burners=burners, samples=samples, device=device)

    def _fail(self, error: Exception) -> None:
        """End the probe with the error, because the script runs for the probe only."""
        self._end(f"the probe failed: {type(error).__name__}: {error}")

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = True
            self._close()
            self._reporter.end(why)

    def _close(self) -> None:
        if self._stages is not None and os.getpid() == self._pid:
            self._stages.close()


class _ProbedEpoch:
    """An iterator that is not torch's, whose batches the probe draws or repeats."""

    def __init__(self, batches: Iterator[Any], take: Callable[[DrawBatch], Any]) -> None:
        self._batches = batches
        self._take = take

    def __iter__(self) -> _ProbedEpoch:
        return self

    def __next__(self) -> Any:
        return self._take(lambda: next(self._batches))


def _initialized_cuda() -> Any:
    """Return torch.cuda; None if the script has not used the GPU, because other calls would then initialize it."""
    cuda: Any = torch.cuda
    return cuda if cuda.is_initialized() else None


def _wait_for_device() -> None:
    if (cuda := _initialized_cuda()) is not None:
        cuda.synchronize()


def begin_probe(session: Session, seconds: float, stop_file: Path | None) -> Callable[[], None]:
    """Start the probe, before the watcher's hooks are installed, and return a function that removes it.

    Each stage is measured for this number of seconds. `stop_file` is made when the script may be ended.
    """
    patches = Patches()
    ScriptStepProbe(seconds, _EventReporter(session, stop_file)).install(patches)
    return patches.undo


class _EventReporter:
    """Records the results as events named "probe", which `penstock.probe.step.read_script_probe` reads."""

    def __init__(self, session: Session, stop_file: Path | None) -> None:
        self._session = session
        self._stop_file = stop_file

    def stage(self, name: Stage, timed: StageTime, *, burners: int, samples: int | None, device: str) -> None:
        self._put(timed.seconds, stage=name, steps=timed.steps, burners=burners, samples=samples, device=device)

    def end(self, why: str) -> None:
        self._put(stage="end", why=why)
        if self._stop_file is not None:
            self._stop_file.touch()

    def _put(self, seconds: float = 0.0, **detail: object) -> None:
        self._session.put(EventLine(what="probe", at_s=self._session.now(), seconds=seconds, detail=detail))
