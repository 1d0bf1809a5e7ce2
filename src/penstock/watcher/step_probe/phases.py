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
from penstock.watcher.step_probe.feeds import Feed

REST = 3
"""Steps that are not counted, after whatever has changed."""
PATIENCE = 3
"""Times its seconds, that a measurement waits for steps that count."""

Stage = Literal["data", "alone", "beside"]


class Took(NamedTuple):
    """One step."""

    wait_s: float
    """For its batch."""
    step_s: float


class Timed(NamedTuple):
    """Some steps, one after the other."""

    steps: int
    seconds: float


class Around(NamedTuple):
    """What the course needs of the process it runs in."""

    clock: Clock
    wait: Callable[[], None]
    """Until the device is done."""
    load: Callable[[int], AbstractContextManager[None]]
    """So many busy processes."""
    report: Callable[[Stage, Timed, int], None]
    """What came of a stage, and the busy processes beside it."""


Steps = Generator[None, Took | None, None]
"""Takes steps as they end; None is one that had something else in it."""


class Course:
    """Goes by the steps of one loader at a time, the leader; `feeds` are all that feed the training."""

    def __init__(self, leader: Feed, feeds: Callable[[], Sequence[Feed]], seconds: float, around: Around) -> None:
        self.keeping = False
        """Whether batches are kept and given again."""
        self.over = False
        self.leader = leader
        self._feeds = feeds
        self._seconds = seconds
        self._around = around
        self._now = around.clock.now
        self._run = self._stages()
        next(self._run)

    def step(self, took: Took | None) -> None:
        """The training asks for its next batch."""
        try:
            self._run.send(took)
        except StopIteration:
            self.over = True

    def close(self) -> None:
        """Ends whatever runs beside the script."""
        self._run.close()

    def _stages(self) -> Steps:
        yield from self._use_up()
        self._tell("data", self._whole_rounds((yield from self._times(with_wait=True))))
        self.keeping = True
        yield from self._settle()
        self._tell("alone", _sum((yield from self._times())))
        burners = min(self.leader.workers or loader_cores(), usable_cores())
        with self._around.load(burners):
            yield from self._rest()
            self._tell("beside", _sum((yield from self._times())), burners)

    def _use_up(self) -> Steps:
        """Batches that lay ready while nobody was asking for them say nothing about the rate; but not for ever."""
        until_s = self._now() + self._seconds
        for _ in range(self.leader.workers * self.leader.ahead):
            if self._now() >= until_s:
                return
            yield

    def _settle(self) -> Steps:
        """Workers still make what they were asked for before: nobody waits for it, but it takes cores."""
        until_s = self._now() + self._seconds
        yield from self._rest()
        while any(feed.busy() for feed in self._feeds()) and self._now() < until_s:
            yield

    def _rest(self) -> Steps:
        for _ in range(REST):
            yield

    def _times(self, *, with_wait: bool = False) -> Generator[None, Took | None, list[float]]:
        """Of steps, until the time is up. What the device still does then belongs to the last one."""
        times: list[float] = []
        self._around.wait()
        began = self._now()
        while (passed_s := self._now() - began) < self._seconds or (not times and passed_s < PATIENCE * self._seconds):
            took = yield
            if took is not None:
                times.append(took.step_s + (took.wait_s if with_wait else 0.0))
        asked = self._now()
        self._around.wait()
        if times:
            times[-1] += self._now() - asked
        return times

    def _whole_rounds(self, times: list[float]) -> Timed | None:
        """Delivery in order repeats itself after every round of the workers: the mean of anything else misleads."""
        window = max(1, self.leader.workers)
        return _sum(times[len(times) % window :])

    def _tell(self, stage: Stage, timed: Timed | None, burners: int = 0) -> None:
        if timed is not None:
            self._around.report(stage, timed, burners)


def _sum(times: list[float]) -> Timed | None:
    return Timed(len(times), sum(times)) if times else None
