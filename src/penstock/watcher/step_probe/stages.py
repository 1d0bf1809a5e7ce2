"""The stages of a step probe: the script with its own data, its step alone, and its step beside a CPU load.

The sequence of stages is a generator, which is resumed whenever the training requests a batch, with the step that has
just ended. Its code therefore stands in one piece, although it runs in pieces between the script's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

from penstock.core.clock import Clock
from penstock.core.cores import loader_cores, usable_cores
from penstock.watcher.step_probe.probed_loaders import ProbedLoader

SETTLE_STEPS = 3
"""Steps that do not count after a change of the conditions."""
MAX_WAIT_FACTOR = 3
"""A stage without any step that counts ends after this multiple of its time."""

Stage = Literal["data", "alone", "beside"]
"""The script with its own data, its step on a repeated batch alone, and the same beside a CPU load."""


class ProbedStep(NamedTuple):
    """The times of one step."""

    wait_s: float
    """Seconds of the wait for its batch."""
    step_s: float
    """Seconds from the batch to the request for the next one."""


class StageTime(NamedTuple):
    """The steps of one stage and their time in seconds."""

    steps: int
    seconds: float


class ProbeEnvironment(NamedTuple):
    """Access of the stages to the process that they run in."""

    clock: Clock
    wait_for_device: Callable[[], None]
    """Waits until the GPU has done its work."""
    cpu_load: Callable[[int], AbstractContextManager[None]]
    """Keeps this number of processes busy inside a `with` block."""
    report: Callable[[Stage, StageTime, int], None]
    """Takes the result of a stage, and the number of busy processes beside it."""


Steps = Generator[None, ProbedStep | None, None]
"""Receives each step when it ends; None for a step that contained something else, such as an evaluation."""


class ProbeStages:
    """Measures the stages one after the other, by the steps of `step_loader`, which may be replaced meanwhile.

    `training_loaders` returns all loaders that are used for training; `seconds` is the time of each stage.
    """

    def __init__(
        self,
        step_loader: ProbedLoader,
        training_loaders: Callable[[], Sequence[ProbedLoader]],
        seconds: float,
        environment: ProbeEnvironment,
    ) -> None:
        self.repeats_batches = False
        """Whether each training loader delivers one batch repeatedly."""
        self.finished = False
        self.step_loader = step_loader
        self._training_loaders = training_loaders
        self._seconds = seconds
        self._environment = environment
        self._now = environment.clock.now
        self._run = self._stages()
        next(self._run)

    def step(self, step: ProbedStep | None) -> None:
        """Take a step that has ended; None if it contained something else."""
        try:
            self._run.send(step)
        except StopIteration:
            self.finished = True

    def close(self) -> None:
        """Stop the CPU load, if one runs."""
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
        """Skip the batches that were prefetched before the probe, for at most the time of a stage.

        They are ready at once, so they would hide how fast the workers are.
        """
        until_s = self._now() + self._seconds
        for _ in range(self.step_loader.workers * self.step_loader.prefetch):
            if self._now() >= until_s:
                return
            yield

    def _wait_for_idle_workers(self) -> Steps:
        """Skip steps until the workers are idle, for at most the time of a stage.

        They still make the batches that were requested before, which uses cores that the step should have.
        """
        until_s = self._now() + self._seconds
        yield from self._skip_steps()
        while any(loader.busy() for loader in self._training_loaders()) and self._now() < until_s:
            yield

    def _skip_steps(self) -> Steps:
        for _ in range(SETTLE_STEPS):
            yield

    def _time_steps(self, *, with_wait: bool = False) -> Generator[None, ProbedStep | None, list[float]]:
        """Return the seconds of each step until the time of the stage is over.

        The work that the GPU still has at the end counts to the last step.
        """
        times: list[float] = []
        self._environment.wait_for_device()
        began = self._now()
        while (passed_s := self._now() - began) < self._seconds or (
            not times and passed_s < MAX_WAIT_FACTOR * self._seconds
        ):
            step = yield
            if step is not None:
                times.append(step.step_s + (step.wait_s if with_wait else 0.0))
        steps_ended = self._now()
        self._environment.wait_for_device()
        if times:
            times[-1] += self._now() - steps_ended
        return times

    def _whole_rounds(self, times: list[float]) -> StageTime | None:
        """Return the time of the last steps, as many as are a multiple of the number of workers.

        Workers deliver in turn, so step times repeat after each round, and the mean of a part of a round is biased.
        """
        round_steps = max(1, self.step_loader.workers)
        return _stage_time(times[len(times) % round_steps :])

    def _report(self, stage: Stage, timed: StageTime | None, burners: int = 0) -> None:
        if timed is not None:
            self._environment.report(stage, timed, burners)


def _stage_time(times: list[float]) -> StageTime | None:
    """Return the sum of these step times; None if there are none."""
    return StageTime(len(times), sum(times)) if times else None
