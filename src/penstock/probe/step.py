"""The step probe: how long does the training step take when its batch is already there?

That time is the lower bound that no loader can improve on. `probe_step` measures a step function in this process.
`read_script_probe` reads what `penstock run --probe compute` measured in a script from its recording.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.cores import loader_cores
from penstock.errors import SettingError
from penstock.probe.results import ScriptProbe, StepProbe, StepTime
from penstock.recording.format import EventLine
from penstock.recording.reader import Recording
from penstock.watcher.loader_views import count_samples
from penstock.watcher.step_probe.cpu_load import cpu_load

SECONDS = 10.0
WARM_UP_STEPS = 3
"""Steps before the timing: the first ones allocate memory, compile and choose kernels."""
WARM_UP_SHARE = 0.2
"""Share of the time after which no further warm-up step starts."""
STEPS_MAX = 100_000

Step = Callable[[Any], object]


def probe_step(
    step: Step, batch: Any, *, seconds: float = SECONDS, burners: int | None = None, clock: Clock = SYSTEM_CLOCK
) -> StepProbe:
    """Run `step(batch)` over and over on one batch: first alone, then beside processes that keep the cores busy.

    The step is the whole training step: forward, backward, optimizer; the model does learn meanwhile. The batch must
    be on the device that the step needs, and the step must not change it. On CUDA, only the events at both ends of each
    series of steps are waited for; on other devices the step must wait for its own work. `burners` is the number of
    busy processes; the default is the number of workers that a loader would have.

        penstock.probe_step(train_step, next(iter(loader)))
    """
    if not 0 < seconds < float("inf"):
        raise SettingError(f"seconds={seconds} is no time to measure in")
    count = loader_cores() if burners is None else burners
    if count < 1:
        raise SettingError(f"burners={count} leaves the cores idle, which flatters the step", advice="Give 1 or more")
    one_s, timer = _warm_up(step, batch, seconds * WARM_UP_SHARE, clock)
    budget_s = seconds * (1 - WARM_UP_SHARE) / 2
    alone = _time_steps(step, batch, timer.max_steps(budget_s, one_s), budget_s, timer)
    with cpu_load(count):
        beside = _time_steps(step, batch, timer.max_steps(budget_s, one_s), budget_s, timer)
    return StepProbe(alone=alone, beside=beside, burners=count, samples=count_samples(batch), device=timer.device)


class _StepTimer(Protocol):
    """Times a series of steps by the clock of the device that they run on."""

    device: str

    def now(self) -> float:
        """Return the host's time in seconds."""
        ...

    def max_steps(self, budget_s: float, one_s: float) -> int:
        """Return the most steps to run: while the host is ahead of the device, its clock cannot show when to stop."""
        ...

    def start(self) -> None:
        """Start timing, before the first step."""
        ...

    def stop(self) -> float:
        """Stop timing after the last step and return the seconds of all steps."""
        ...


class _HostTimer:
    """Times steps that return when they are done, by the host's clock."""

    device = "cpu"

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self._began = 0.0

    def max_steps(self, budget_s: float, one_s: float) -> int:
        return STEPS_MAX

    def start(self) -> None:
        self._began = self.now()

    def stop(self) -> float:
        return self.now() - self._began


class _CudaTimer:
    """Times steps that only queue work, by an event before the first and one after the last."""

    device = "cuda"

    def __init__(self, clock: Clock, cuda: Any) -> None:
        self.now = clock.now
        self._cuda = cuda
        self._first: Any = None

    def max_steps(self, budget_s: float, one_s: float) -> int:
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
    """Run the first steps; return the time of the last of them, and the timer for the device that they used."""
    began = clock.now()
    try:
        step(batch)
        timer = _make_timer(clock)
        one_s = _time_one(step, batch, timer)
        for _ in range(WARM_UP_STEPS - 2):
            if clock.now() - began >= budget_s:
                break
            one_s = _time_one(step, batch, timer)
    except Exception as error:
        raise SettingError(
            f"the step failed on its batch: {type(error).__name__}: {error}", advice=_advice(error), stage="probe"
        ) from error
    return one_s, timer


def _make_timer(clock: Clock) -> _StepTimer:
    """Return the timer for the device; torch is not imported, since a step that did not import it does not use CUDA."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        return _CudaTimer(clock, cuda)
    return _HostTimer(clock)


def _time_one(step: Step, batch: Any, timer: _StepTimer) -> float:
    timer.start()
    step(batch)
    return timer.stop()


def _time_steps(step: Step, batch: Any, max_steps: int, budget_s: float, timer: _StepTimer) -> StepTime:
    """Run and time steps until the budget is used up; at least one."""
    began = timer.now()
    timer.start()
    steps = 0
    while steps < max_steps:
        step(batch)
        steps += 1
        if timer.now() - began >= budget_s:
            break
    return StepTime(steps, max(timer.stop(), 1e-9) / steps)


def _advice(error: Exception) -> str | None:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if "cuda" in str(error).lower() and cuda is not None and not cuda.is_available():
        return "No GPU can be used here: run where there is one, or put model and batch on the CPU"
    return None


# -- the probe of a script -----------------------------------------------------------------------------------------


class _ProbeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The detail of an event named "probe", as `penstock.watcher.step_probe.probe` writes it."""

    stage: str
    steps: int = 0
    burners: int = 0
    samples: int | None = None
    device: str = "cpu"
    why: str = ""


def read_script_probe(recording: Recording) -> ScriptProbe:
    """Return all measurements that the recording contains; a damaged line counts as missing."""
    found: dict[str, Any] = {}
    for event in recording.events:
        if event.what == "probe":
            found |= _read_event(event)
    return ScriptProbe(**found)


def _read_event(event: EventLine) -> dict[str, Any]:
    try:
        detail = msgspec.convert(event.detail, _ProbeEvent)
    except msgspec.ValidationError:
        return {}
    if detail.stage == "end":
        return {"why": detail.why}
    if detail.stage not in ("data", "alone", "beside") or detail.steps < 1 or event.seconds <= 0:
        return {}
    found: dict[str, Any] = {detail.stage: StepTime(detail.steps, event.seconds / detail.steps)}
    found |= {"samples": detail.samples, "device": detail.device}
    return found | ({"burners": detail.burners} if detail.stage == "beside" else {})
