"""The course of a probe, on a clock of the test's: every step tells how long it was, and time passes only by steps."""

from contextlib import contextmanager

import pytest

from penstock.core.cores import loader_cores, usable_cores
from penstock.testing import FakeClock
from penstock.watcher.step_probe.probed_loaders import ProbedLoader
from penstock.watcher.step_probe.stages import (
    MAX_WAIT_FACTOR,
    SETTLE_STEPS,
    ProbedStep,
    ProbeEnvironment,
    ProbeStages,
    StageTime,
)

SECONDS = 10.0


class Loader(ProbedLoader):
    """Whose workers are busy for so many looks."""

    def __init__(self, workers=0, ahead=2, looks=0):
        super().__init__(workers, ahead)
        self.looks = looks

    def busy(self):
        self.looks -= 1
        return self.looks >= 0


class Script:
    """Takes steps until the course is over; a step is slower beside a load, and waits for data of its own."""

    def __init__(self, feed, *, step_s=0.1, wait_s=0.2, beside_s=0.15):
        self.clock = FakeClock()
        self.told = {}
        self.loads = []
        self.load = 0
        self.waits = 0
        self._step_s, self._wait_s, self._beside_s = step_s, wait_s, beside_s
        self.course = ProbeStages(
            feed, lambda: [feed], SECONDS, ProbeEnvironment(self.clock, self._wait, self._burn, self._report)
        )

    @contextmanager
    def _burn(self, count):
        self.loads.append(count)
        self.load = count
        try:
            yield
        finally:
            self.load = 0

    def _report(self, stage, timed, burners):
        self.told[stage] = (timed, burners)

    def _wait(self):
        self.waits += 1

    def step(self, *, counts=True):
        wait_s = 0.0 if self.course.repeats_batches else self._wait_s
        step_s = self._beside_s if self.load else self._step_s
        self.clock.advance(wait_s + step_s)
        self.course.step(ProbedStep(wait_s, step_s) if counts else None)

    def run(self, most=10_000):
        for _ in range(most):
            self.step()
            if self.course.finished:
                return self
        raise AssertionError("the course has no end")


def per_step(told):
    timed, _ = told
    return timed.seconds / timed.steps


def test_data_then_the_step_alone_then_beside_a_load():
    script = Script(Loader(workers=1)).run()
    assert list(script.told) == ["data", "alone", "beside"]
    assert per_step(script.told["data"]) == pytest.approx(0.3)
    assert per_step(script.told["alone"]) == pytest.approx(0.1)
    assert per_step(script.told["beside"]) == pytest.approx(0.15)
    assert script.told["alone"][0].steps == pytest.approx(SECONDS / 0.1, abs=1)
    assert script.load == 0


def test_batches_are_kept_from_the_end_of_the_data_on():
    script = Script(Loader())
    assert not script.course.repeats_batches
    while "data" not in script.told:
        script.step()
    assert script.course.repeats_batches
    assert script.run().course.repeats_batches


def test_the_load_is_as_many_as_the_loader_has_workers_but_no_more_than_cores():
    assert Script(Loader(workers=1)).run().told["beside"][1] == 1
    assert Script(Loader(workers=500, ahead=0)).run().loads == [usable_cores()]
    assert Script(Loader(workers=0)).run().loads == [min(loader_cores(), usable_cores())]


def test_what_lay_ready_is_used_up_before_data_is_timed():
    script = Script(Loader(workers=2, ahead=3))
    for _ in range(6):
        script.step()
    script._wait_s = 0.4
    assert per_step(script.run().told["data"]) == pytest.approx(0.5)


def test_only_whole_rounds_of_the_workers_are_counted():
    script = Script(Loader(workers=7, ahead=0)).run()
    assert script.told["data"][0].steps % 7 == 0


def test_less_than_a_round_is_not_told():
    script = Script(Loader(workers=4, ahead=0), wait_s=4.0).run()
    assert list(script.told) == ["alone", "beside"]


def test_steps_beside_workers_that_are_still_busy_do_not_count():
    feed = Loader(looks=40)
    script = Script(feed)
    while "data" not in script.told:
        script.step()
    script._step_s = 0.2
    while feed.looks >= 0:
        script.step()
    script._step_s = 0.1
    assert per_step(script.run().told["alone"]) == pytest.approx(0.1, rel=0.02)


def test_workers_that_never_rest_are_not_waited_for_for_ever():
    script = Script(Loader(looks=10**9)).run()
    assert script.clock.now() < 6 * SECONDS


def test_a_step_with_something_else_in_it_does_not_count():
    script = Script(Loader())
    while "data" not in script.told:
        script.step()
    for _ in range(SETTLE_STEPS + 1):
        script.step()
    script.clock.advance(3.0)
    script.course.step(None)
    script.run()
    assert per_step(script.told["alone"]) == pytest.approx(0.1)
    assert script.told["alone"][0].steps < SECONDS / 0.1 - 20


def test_nothing_but_such_steps_comes_to_an_end_without_a_number():
    script = Script(Loader())
    for _ in range(3 * int(MAX_WAIT_FACTOR * SECONDS / 0.1) + 100):
        if not script.course.finished:
            script.step(counts=False)
    assert script.course.finished
    assert script.told == {}


def test_a_step_longer_than_the_time_is_one_step():
    script = Script(Loader(), step_s=60.0, beside_s=90.0).run()
    assert script.told["alone"][0] == StageTime(1, 60.0)
    assert script.told["beside"][0] == StageTime(1, 90.0)


def test_the_device_is_waited_for_at_the_ends_and_that_is_part_of_the_steps():
    script = Script(Loader())
    script._wait = None
    late = iter([0.0, 0.0, 0.0, 5.0])
    script.course = ProbeStages(
        Loader(),
        lambda: [],
        SECONDS,
        ProbeEnvironment(script.clock, lambda: script.clock.advance(next(late, 0.0)), script._burn, script._report),
    )
    script.run()
    timed = script.told["alone"][0]
    assert timed.seconds == pytest.approx(timed.steps * 0.1 + 5.0)


def test_closing_ends_the_load():
    script = Script(Loader())
    while not script.load:
        script.step()
    script.course.close()
    assert script.load == 0
