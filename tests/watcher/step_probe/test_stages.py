"""The stages of a step probe on a fake clock, which only the steps of a simulated script advance."""

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


class FakeLoader(ProbedLoader):
    """A loader whose workers are reported busy for the first `busy_checks` calls of `busy`."""

    def __init__(self, workers=0, prefetch=2, busy_checks=0):
        super().__init__(workers, prefetch)
        self.busy_checks = busy_checks

    def busy(self):
        self.busy_checks -= 1
        return self.busy_checks >= 0


class Script:
    """A simulated training under a probe.

    A step takes `step_s`, or `loaded_step_s` beside a CPU load; it waits `wait_s` unless the batch is repeated.
    """

    def __init__(self, loader, *, step_s=0.1, wait_s=0.2, loaded_step_s=0.15):
        self.clock = FakeClock()
        self.reported = {}
        self.loads = []
        """The number of load processes of each load that was started."""
        self.load = 0
        """The number of load processes that run now."""
        self._step_s, self._wait_s, self._loaded_step_s = step_s, wait_s, loaded_step_s
        self.stages = ProbeStages(
            loader, lambda: [loader], SECONDS, ProbeEnvironment(self.clock, lambda: None, self._cpu_load, self._report)
        )

    @contextmanager
    def _cpu_load(self, count):
        self.loads.append(count)
        self.load = count
        try:
            yield
        finally:
            self.load = 0

    def _report(self, stage, timed, burners):
        self.reported[stage] = (timed, burners)

    def step(self, *, counts=True):
        wait_s = 0.0 if self.stages.repeats_batches else self._wait_s
        step_s = self._loaded_step_s if self.load else self._step_s
        self.clock.advance(wait_s + step_s)
        self.stages.step(ProbedStep(wait_s, step_s) if counts else None)

    def run(self, max_steps=10_000):
        for _ in range(max_steps):
            self.step()
            if self.stages.finished:
                return self
        raise AssertionError("the probe did not end")


def seconds_per_step(report):
    timed, _ = report
    return timed.seconds / timed.steps


def test_stages_are_data_then_the_step_alone_then_the_step_beside_a_load():
    script = Script(FakeLoader(workers=1)).run()
    assert list(script.reported) == ["data", "alone", "beside"]
    assert seconds_per_step(script.reported["data"]) == pytest.approx(0.3)
    assert seconds_per_step(script.reported["alone"]) == pytest.approx(0.1)
    assert seconds_per_step(script.reported["beside"]) == pytest.approx(0.15)
    assert script.reported["alone"][0].steps == pytest.approx(SECONDS / 0.1, abs=1)
    assert script.load == 0


def test_batches_are_repeated_from_the_end_of_the_data_stage_on():
    script = Script(FakeLoader())
    assert not script.stages.repeats_batches
    while "data" not in script.reported:
        script.step()
    assert script.stages.repeats_batches
    assert script.run().stages.repeats_batches


def test_the_load_has_as_many_processes_as_the_loader_has_workers_up_to_the_cores():
    assert Script(FakeLoader(workers=1)).run().reported["beside"][1] == 1
    assert Script(FakeLoader(workers=500, prefetch=0)).run().loads == [usable_cores()]
    assert Script(FakeLoader(workers=0)).run().loads == [min(loader_cores(), usable_cores())]


def test_prefetched_batches_are_used_up_before_the_data_stage():
    script = Script(FakeLoader(workers=2, prefetch=3))
    for _ in range(6):
        script.step()
    script._wait_s = 0.4
    assert seconds_per_step(script.run().reported["data"]) == pytest.approx(0.5)


def test_the_data_stage_counts_only_whole_rounds_of_the_workers():
    script = Script(FakeLoader(workers=7, prefetch=0)).run()
    assert script.reported["data"][0].steps % 7 == 0


def test_the_data_stage_is_not_reported_with_less_than_one_round_of_steps():
    script = Script(FakeLoader(workers=4, prefetch=0), wait_s=4.0).run()
    assert list(script.reported) == ["alone", "beside"]


def test_steps_do_not_count_while_workers_are_still_busy():
    loader = FakeLoader(busy_checks=40)
    script = Script(loader)
    while "data" not in script.reported:
        script.step()
    script._step_s = 0.2
    while loader.busy_checks >= 0:
        script.step()
    script._step_s = 0.1
    assert seconds_per_step(script.run().reported["alone"]) == pytest.approx(0.1, rel=0.02)


def test_waiting_for_idle_workers_has_a_time_limit():
    script = Script(FakeLoader(busy_checks=10**9)).run()
    assert script.clock.now() < 6 * SECONDS


def test_a_disturbed_step_does_not_count():
    script = Script(FakeLoader())
    while "data" not in script.reported:
        script.step()
    for _ in range(SETTLE_STEPS + 1):
        script.step()
    script.clock.advance(3.0)
    script.stages.step(None)
    script.run()
    assert seconds_per_step(script.reported["alone"]) == pytest.approx(0.1)
    assert script.reported["alone"][0].steps < SECONDS / 0.1 - 20


def test_a_probe_with_only_disturbed_steps_ends_without_a_report():
    script = Script(FakeLoader())
    for _ in range(3 * int(MAX_WAIT_FACTOR * SECONDS / 0.1) + 100):
        if not script.stages.finished:
            script.step(counts=False)
    assert script.stages.finished
    assert script.reported == {}


def test_a_step_longer_than_the_stage_counts_as_one_step():
    script = Script(FakeLoader(), step_s=60.0, loaded_step_s=90.0).run()
    assert script.reported["alone"][0] == StageTime(1, 60.0)
    assert script.reported["beside"][0] == StageTime(1, 90.0)


def test_a_stage_includes_the_wait_for_the_device_after_its_last_step():
    script = Script(FakeLoader())
    device_waits_s = iter([0.0, 0.0, 0.0, 5.0])  # before and after the data stage, then the same for the step alone
    script.stages = ProbeStages(
        FakeLoader(),
        lambda: [],
        SECONDS,
        ProbeEnvironment(
            script.clock, lambda: script.clock.advance(next(device_waits_s, 0.0)), script._cpu_load, script._report
        ),
    )
    script.run()
    timed = script.reported["alone"][0]
    assert timed.seconds == pytest.approx(timed.steps * 0.1 + 5.0)


def test_closing_stops_the_load():
    script = Script(FakeLoader())
    while not script.load:
        script.step()
    script.stages.close()
    assert script.load == 0
