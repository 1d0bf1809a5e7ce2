"""What is measured, in order: the script with its own data, its step alone, its step beside a load.

The course is a generator that is resumed whenever the training asks for a batch, with the step that has just ended. So
it reads from top to bottom, though it runs in pieces between the script's own lines.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

from penstock.core.clock import Clock
from penstock.core.cores import loader_cores, usable_cores
from penstock.watcher.step_probe.probed_loaders import ProbedLoader

SETTLE_STEPS = 3
"""Steps that are not counted, after whatever has changed."""
MAX_WAIT_FACTOR = 3
"""Times its seconds, that a measurement waits for steps that count."""

Stage = Literal["data", "alone", "beside"]


class ProbedStep(NamedTuple):
    """One step."""

    wait_s: float
    """For its batch."""
    step_s: float


class StageTime(NamedTuple):
    """Some steps, one after the other."""

    steps: int
    seconds: float


class ProbeEnvironment(NamedTuple):
    """What the course needs of the process it runs in."""

    clock: Clock
    wait_for_device: Callable[[], None]
    """Until the device is done."""
    cpu_load: Callable[[int], AbstractContextManager[None]]
    """So many busy processes."""
    report: Callable[[Stage, StageTime, int], None]
    """What came of a stage, and the busy processes beside it."""


Steps = Generator[None, ProbedStep | None, None]
"""Takes steps as they end; None is one that had something else in it."""


class ProbeStages:
    """Goes by the steps of one loader at a time, the leader; `feeds` are all that feed the training."""

    def __init__(
        self,
        step_loader: ProbedLoader,
        training_loaders: Callable[[], Sequence[ProbedLoader]],
        seconds: float,
        environment: ProbeEnvironment,
    ) -> None:
        self.repeats_batches = False
        """Whether batches are kept and given again."""
        self.finished = False
        self.step_loader = step_loader
        self._training_loaders = training_loaders
        self._seconds = seconds
        self._environment = environment
        self._now = environment.clock.now
        self._run = self._stages()
        next(self._run)

    def step(self, step: ProbedStep | None) -> None:
        """The training asks for its next batch."""
        try:
            self._run.send(step)
        except StopIteration:
            self.finished = True

    def close(self) -> None:
        """Ends whatever runs beside the script."""
        self._run.close()

    def _stages(self) -> Steps:
        yield from self._use_prefetched_batches()
        self._report("data", self._whole_rounds((yield from self._time_steps(with_wait=True))))
        self.repeats_batches = True
        yield from self._wait_for_idle_workers()
        self._report("alone", _stage_time((yield from self._time_steps())))
        burners = min(self.step_loader.workers or loader_cores(), usable_cores())
        with self._environment.cpu_load(burners):
            yield from self._skip_steps()
            self._report("beside", _stage_time((yield from self._time_steps())), burners)

    def _use_prefetched_batches(self) -> Steps:
        """Batches that lay ready while nobody was asking for them say nothing about the rate; but not for ever."""
        until_s = self._now() + self._seconds
        for _ in range(self.step_loader.workers * self.step_loader.prefetch):
            if self._now() >= until_s:
                return
            yield

    def _wait_for_idle_workers(self) -> Steps:
        """Workers still make what they were asked for before: nobody waits for it, but it takes cores."""
        until_s = self._now() + self._seconds
        yield from self._skip_steps()
        while any(feed.busy() for feed in self._training_loaders()) and self._now() < until_s:
            yield

    def _skip_steps(self) -> Steps:
        for _ in range(SETTLE_STEPS):
            yield

    def _time_steps(self, *, with_wait: bool = False) -> Generator[None, ProbedStep | None, list[float]]:
        """Of steps, until the time is up. What the device still does then belongs to the last one."""
        times: list[float] = []
        self._environment.wait_for_device()
        began = self._now()
        while (passed_s := self._now() - began) < self._seconds or (
            not times and passed_s < MAX_WAIT_FACTOR * self._seconds
        ):
            took = yield
            if took is not None:
                times.append(took.step_s + (took.wait_s if with_wait else 0.0))
        asked = self._now()
        self._environment.wait_for_device()
        if times:
            times[-1] += self._now() - asked
        return times

    def _whole_rounds(self, times: list[float]) -> StageTime | None:
        """Delivery in order repeats itself after every round of the workers: the mean of anything else misleads."""
        window = max(1, self.step_loader.workers)
        return _stage_time(times[len(times) % window :])

    def _report(self, stage: Stage, timed: StageTime | None, load_processes: int = 0) -> None:
        if timed is not None:
            self._environment.report(stage, timed, load_processes)


def _stage_time(times: list[float]) -> StageTime | None:
    return StageTime(len(times), sum(times)) if times else None
