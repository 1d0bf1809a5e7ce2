"""How long does the training step take if its batch is there already? The floor that no loader can go below."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.cores import loader_cores
from penstock.errors import SettingError
from penstock.probe.results import StepProbe, StepTime
from penstock.watcher.loader_views import count_samples
from penstock.watcher.step_probe.cpu_load import cpu_load

SECONDS = 10.0
WARM_UP = 3
"""Steps before the clock runs: the first ones allocate, compile and choose kernels."""
WARM_UP_SHARE = 0.2
"""Of the time, where steps are so long that three take more."""
STEPS_MAX = 100_000

Step = Callable[[Any], object]


def probe_step(
    step: Step, batch: Any, *, seconds: float = SECONDS, burners: int | None = None, clock: Clock = SYSTEM_CLOCK
) -> StepProbe:
    """Run `step(batch)` over and over on the one batch: first alone, then beside processes that keep the cores busy.

    The step is the whole of it: forward, backward, optimizer; the model does learn meanwhile. The batch lies where the
    step wants it, and must not be changed by it. On CUDA, device events at both ends of each run of steps are all that
    is waited for; on other devices the step must wait for its own work. `burners` is as many as a loader would have.

        penstock.probe_step(train_step, next(iter(loader)))
    """
    if not 0 < seconds < float("inf"):
        raise SettingError(f"seconds={seconds} is no time to measure in")
    count = loader_cores() if burners is None else burners
    if count < 1:
        raise SettingError(f"burners={count} leaves the cores idle, which flatters the step", advice="Give 1 or more")
    one_s, watch = _warm_up(step, batch, seconds * WARM_UP_SHARE, clock)
    budget_s = seconds * (1 - WARM_UP_SHARE) / 2
    alone = _timed(step, batch, watch.steps_in(budget_s, one_s), budget_s, watch)
    with cpu_load(count):
        beside = _timed(step, batch, watch.steps_in(budget_s, one_s), budget_s, watch)
    return StepProbe(alone=alone, beside=beside, burners=count, samples=count_samples(batch), device=watch.device)


class _StepTimer(Protocol):
    """Whose clock the steps are timed by."""

    device: str

    def now(self) -> float:
        """The host's time."""
        ...

    def steps_in(self, budget_s: float, one_s: float) -> int:
        """How many at most: where the host runs ahead of the device, its own clock does not tell when to stop."""
        ...

    def start(self) -> None:
        """Before the first step."""
        ...

    def stop(self) -> float:
        """After the last: seconds of all of them."""
        ...


class _HostTimer:
    """For steps that return when they are done."""

    device = "cpu"

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self._began = 0.0

    def steps_in(self, budget_s: float, one_s: float) -> int:
        return STEPS_MAX

    def start(self) -> None:
        self._began = self.now()

    def stop(self) -> float:
        return self.now() - self._began


class _CudaTimer:
    """For steps that only queue work: an event before the first and one after the last."""

    device = "cuda"

    def __init__(self, clock: Clock, cuda: Any) -> None:
        self.now = clock.now
        self._cuda = cuda
        self._first: Any = None

    def steps_in(self, budget_s: float, one_s: float) -> int:
        return max(1, min(STEPS_MAX, int(budget_s / max(one_s, 1e-6))))

    def start(self) -> None:
        self._first = self._cuda.Event(enable_timing=True)
        self._first.record()

    def stop(self) -> float:
        last = self._cuda.Event(enable_timing=True)
        last.record()
        last.synchronize()
        return float(self._first.elapsed_time(last)) / 1e3


def _warm_up(step: Step, batch: Any, budget_s: float, clock: Clock) -> tuple[float, _StepTimer]:
    """What the last of the first steps took, and the watch to use: only a step shows which device it needs."""
    began = clock.now()
    try:
        step(batch)
        watch = _watch(clock)
        one_s = _one(step, batch, watch)
        for _ in range(WARM_UP - 2):
            if clock.now() - began >= budget_s:
                break
            one_s = _one(step, batch, watch)
    except Exception as error:
        raise SettingError(
            f"the step failed on its batch: {type(error).__name__}: {error}", advice=_advice(error), stage="probe"
        ) from error
    return one_s, watch


def _watch(clock: Clock) -> _StepTimer:
    """torch is not imported for this: a step that has not needed it does not use its devices."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        return _CudaTimer(clock, cuda)
    return _HostTimer(clock)


def _one(step: Step, batch: Any, watch: _StepTimer) -> float:
    watch.start()
    step(batch)
    return watch.stop()


def _timed(step: Step, batch: Any, most: int, budget_s: float, watch: _StepTimer) -> StepTime:
    """Steps until the time is up; one at least."""
    began = watch.now()
    watch.start()
    steps = 0
    while steps < most:
        step(batch)
        steps += 1
        if watch.now() - began >= budget_s:
            break
    return StepTime(steps, max(watch.stop(), 1e-9) / steps)


def _advice(error: Exception) -> str | None:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if "cuda" in str(error).lower() and cuda is not None and not cuda.is_available():
        return "No GPU can be used here: run where there is one, or put model and batch on the CPU"
    return None
