"""The policies on simulated machines, and the controller's windows on a clock that the test owns."""

import random
from dataclasses import replace
from statistics import mean

import pytest

from penstock.data.device.gpu_decode.decode_split import (
    AUTO_FIRST_PAUSE,
    FIRST_PAUSE,
    MIN_STALL,
    SETTLING_BATCHES,
    WINDOW_BATCHES,
    AutoSplit,
    FixedSplit,
    HybridSplit,
    SplitController,
    SplitWindow,
    auto_limit,
    balanced_fraction,
)
from penstock.data.fields.gpu_image import SharedFraction
from penstock.testing import FakeClock


class Machine:
    """A machine with rates in batches per second.

    The step is slower the more the GPU decodes, and the GPU the busier the CPU is.
    """

    def __init__(self, cpu, gpu, step_s=0.0, step_slowdown=0.0, gpu_slowdown=0.0):
        self.cpu, self.gpu, self.step_s = cpu, gpu, step_s
        self.step_slowdown, self.gpu_slowdown = step_slowdown, gpu_slowdown

    def window(self, fraction):
        cpu_s, gpu_s = (1 - fraction) / self.cpu, fraction / self.gpu
        step_s = self.step_s * (1 + self.step_slowdown * fraction)
        alone_s, period_s = gpu_s, max(cpu_s, gpu_s, step_s)
        for _ in range(50):  # a busy CPU makes the period longer, and that makes the CPU less busy
            gpu_s = alone_s * (1 + self.gpu_slowdown * min(1.0, cpu_s / period_s) ** 2)
            period_s = (period_s + max(cpu_s, gpu_s, step_s)) / 2
        cpu_wait_s = max(0.0, period_s - max(gpu_s, step_s))  # the GPU begins when the CPU is done
        return SplitWindow(cpu_wait_s / period_s, (gpu_s - step_s) / period_s, period_s, (period_s - step_s) / period_s)

    def best_s(self):
        return min(self.window(percent / 100).period_s for percent in range(101))

    def run(self, policy, windows):
        fractions = []
        for _ in range(windows):
            policy.update(self.window(policy.fraction))
            fractions.append(policy.fraction)
        return fractions


def efficiency(machine, policy, windows, noise=0.0, seed=0):
    """Return the fraction of the batches that arrive of those that could."""
    rng, periods = random.Random(seed), []
    for _ in range(windows):
        window = machine.window(policy.fraction)
        periods.append(window.period_s)
        policy.update(replace(window, period_s=window.period_s * rng.gauss(1, noise)))
    return machine.best_s() / mean(periods)


MACHINES = [
    Machine(100, 100),
    Machine(1300, 3400),
    Machine(3000, 600),
    Machine(9500, 22000, gpu_slowdown=0.9),
    Machine(1200, 3000, gpu_slowdown=1.5),
]


# -- hybrid ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_hybrid_comes_close_to_the_best_rate_from_any_start(machine, start):
    policy = HybridSplit(start)
    efficiency(machine, policy, 14)
    assert efficiency(machine, policy, 60) > 0.95


@pytest.mark.parametrize("machine", MACHINES)
def test_noise_does_not_lead_hybrid_far_from_the_best(machine):
    found = []
    for seed in range(20):
        policy = HybridSplit(0.4)
        efficiency(machine, policy, 20, 0.03, seed)
        found.append(efficiency(machine, policy, 100, 0.03, seed + 100))
    assert mean(found) > 0.95
    assert min(found) > 0.8


def test_a_step_without_gain_is_undone_and_the_next_is_shorter_and_in_the_opposite_direction():
    policy, fractions = HybridSplit(0.5), []
    for _ in range(4):
        policy.update(SplitWindow(0.5, 0.2, 0.1, 0.0))  # the fraction has no effect
        fractions.append(policy.fraction)
    assert fractions == pytest.approx([0.6, 0.5, 0.45, 0.5])


def test_the_pauses_double_while_no_step_brings_a_gain():
    policy, changed = HybridSplit(0.5), []
    for _ in range(200):
        before = policy.fraction
        policy.update(SplitWindow(0.5, 0.2, 0.1, 0.0))
        changed.append(policy.fraction != before)
    runs = "".join("x" if each else "." for each in changed).split("x")
    pauses = [len(run) for run in runs if len(run) > 1]
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]


def test_the_fraction_follows_when_one_side_becomes_slower():
    policy = HybridSplit(0.7)
    efficiency(Machine(1300, 3400), policy, 40)
    efficiency(Machine(1300, 400), policy, 20)
    assert efficiency(Machine(1300, 400), policy, 40) > 0.95


def test_hybrid_keeps_the_fraction_while_the_loop_waits_for_neither_side():
    assert set(Machine(1000, 1000, step_s=1.0).run(HybridSplit(0.4), 10)) == {0.4}


def test_hybrid_keeps_the_fraction_when_waits_are_rare():
    policy = HybridSplit(0.4)
    policy.update(SplitWindow(0.04, 0.02, 0.1, 0.0))
    assert policy.fraction == 0.4


def test_a_window_with_waits_for_both_sides_points_to_the_gpu():
    assert SplitWindow(0.3, 0.6, 0.1, 0.0).direction == 1


# -- auto --------------------------------------------------------------------------------------------------------------


def test_auto_leaves_all_images_to_a_cpu_that_keeps_up():
    assert set(Machine(100, 100, step_s=0.02).run(AutoSplit(0.5), 20)) == {0.0}


def test_auto_gives_the_gpu_no_more_than_removes_the_stall():
    machine = Machine(10, 100, step_s=0.08, step_slowdown=0.1)
    fractions = machine.run(AutoSplit(0.5), 10)
    assert machine.window(fractions[-1]).stalled < MIN_STALL
    assert 0.1 <= fractions[-1] <= 0.3


def test_auto_never_exceeds_its_limit():
    assert max(Machine(1, 100, step_s=0.01).run(AutoSplit(0.5), 30)) == 0.5


def test_auto_goes_back_where_the_step_became_slower_than_the_stall_that_was_removed():
    machine = Machine(10, 100, step_s=0.09, step_slowdown=4.0)
    fractions = machine.run(AutoSplit(0.5), 64)
    assert fractions[:2] == pytest.approx([0.1, 0.0])
    assert fractions[2 : 2 + AUTO_FIRST_PAUSE] == [0.0] * AUTO_FIRST_PAUSE
    assert 2 <= sum(fraction > 0 for fraction in fractions) <= 4  # it tries again after longer and longer pauses


def test_the_first_step_of_auto_is_as_large_as_the_stall():
    assert Machine(1, 100, step_s=0.01).run(AutoSplit(0.5), 1) == [0.5]
    assert Machine(10, 100, step_s=0.07).run(AutoSplit(0.5), 1) == pytest.approx([0.3])


def test_auto_halves_its_step_after_one_without_gain():
    machine = Machine(10, 100, step_s=0.05, step_slowdown=3.0)
    fractions = machine.run(AutoSplit(0.5), AUTO_FIRST_PAUSE + 3)
    assert fractions == [0.5, 0.0, *[0.0] * AUTO_FIRST_PAUSE, 0.25]
    assert machine.window(0.25).period_s < machine.window(0.0).period_s < machine.window(0.5).period_s


@pytest.mark.parametrize("noise", [0.05, 0.15])
def test_noise_does_not_lead_auto_away_from_the_best(noise):
    machine, found = Machine(10, 100, step_s=0.06, step_slowdown=0.1), []
    for seed in range(20):
        policy = AutoSplit(0.5)
        efficiency(machine, policy, 20, noise, seed)
        found.append(efficiency(machine, policy, 100, noise, seed + 100))
    assert mean(found) > 0.93


def test_auto_returns_images_to_a_cpu_that_became_fast_enough():
    policy = AutoSplit(0.5)
    Machine(10, 100, step_s=0.08).run(policy, 6)
    assert policy.fraction > 0
    assert Machine(100, 100, step_s=0.08).run(policy, 300)[-1] == 0.0


def test_auto_returns_images_when_the_gpu_is_late():
    policy = AutoSplit(0.5)
    Machine(10, 100, step_s=0.02).run(policy, 8)
    before = policy.fraction
    Machine(100, 1, step_s=0.02).run(policy, AUTO_FIRST_PAUSE * 4)
    assert policy.fraction < before


def test_a_fixed_split_does_not_change():
    assert set(Machine(1, 100).run(FixedSplit(1.0), 3)) == {1.0}


def test_both_sides_finish_together_and_auto_ignores_small_gains():
    assert balanced_fraction(300, 100) == 0.75
    assert auto_limit(0.1) == 0
    assert auto_limit(0.4) == 0.4
    assert auto_limit(0.9) == 0.5


# -- controller --------------------------------------------------------------------------------------------------------


class RecordingPolicy:
    """Keeps its windows, and changes the fraction to `then` if that is given."""

    def __init__(self, fraction=0.5, then=None):
        self.fraction, self.then = fraction, then
        self.windows = []

    def update(self, window):
        self.windows.append(window)
        if self.then is not None:
            self.fraction = self.then


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def policy():
    return RecordingPolicy()


@pytest.fixture
def controller(policy, clock):
    return SplitController([(SharedFraction(0.5), policy)], clock)


def batches(controller, clock, count, cpu_s=0.0, gpu_s=0.0, step_s=0.1, stalled=lambda: 0.0, ahead=False):
    for _ in range(count):
        controller.batch_requested()
        clock.sleep(cpu_s)
        controller.batch_sent(ahead=ahead)
        clock.sleep(gpu_s)
        controller.batch_received(gpu_s, stalled)
        clock.sleep(step_s)


def test_a_window_has_the_waits_for_each_side(controller, policy, clock):
    batches(controller, clock, SETTLING_BATCHES + 1)
    batches(controller, clock, 10, cpu_s=0.1)
    batches(controller, clock, 5, gpu_s=0.1)
    (window,) = policy.windows
    assert window.cpu_wait == pytest.approx(0.9 / 2.9, rel=0.05)  # without the longest
    assert window.gpu_wait == pytest.approx(0.4 / 2.9, rel=0.05)
    assert window.direction == 1


def test_the_wait_for_the_first_batch_of_an_epoch_is_not_counted(controller, policy, clock):
    batches(controller, clock, SETTLING_BATCHES + 3)
    batches(controller, clock, 1, cpu_s=5.0)
    batches(controller, clock, WINDOW_BATCHES - 4)
    assert policy.windows[0].direction == 0


def test_no_window_begins_while_workers_are_starting(controller, policy, clock):
    starting = [True]
    controller.workers_ready = lambda: not starting
    batches(controller, clock, 3 * (SETTLING_BATCHES + WINDOW_BATCHES), cpu_s=5.0)
    assert policy.windows == []
    starting.clear()
    batches(controller, clock, SETTLING_BATCHES)
    starting.append(True)  # more workers start
    batches(controller, clock, 1)
    starting.clear()
    batches(controller, clock, SETTLING_BATCHES + WINDOW_BATCHES - 1)
    assert policy.windows == []
    batches(controller, clock, 1)
    assert [window.direction for window in policy.windows] == [0]


def test_a_batch_that_is_sent_ahead_of_the_loop_was_not_waited_for(controller, policy, clock):
    batches(controller, clock, SETTLING_BATCHES + WINDOW_BATCHES, cpu_s=0.1, ahead=True)
    assert policy.windows[0].cpu_wait == 0


def test_a_batch_sent_ahead_does_not_hide_the_wait_for_the_one_before(controller, policy, clock):
    for _ in range(SETTLING_BATCHES + WINDOW_BATCHES):
        controller.batch_requested()
        clock.sleep(0.1)
        controller.batch_sent(ahead=False)
        controller.batch_requested()
        controller.batch_sent(ahead=True)
        controller.batch_received(0.0, lambda: 0.0)
    assert policy.windows[0].cpu_wait == pytest.approx(1.0)


def test_the_fraction_of_the_workers_changes_and_batches_made_before_are_not_counted(clock):
    policy, fraction = RecordingPolicy(then=0.75), SharedFraction(0.5)
    controller = SplitController([(fraction, policy)], clock)
    batches(controller, clock, SETTLING_BATCHES + WINDOW_BATCHES)
    assert fraction.value == 0.75
    batches(controller, clock, SETTLING_BATCHES, cpu_s=0.1)
    batches(controller, clock, WINDOW_BATCHES)
    assert [window.cpu_wait for window in policy.windows] == [0, 0]


def test_stalls_and_periods_are_those_of_the_window(controller, policy, clock):
    batches(controller, clock, SETTLING_BATCHES, stalled=lambda: 5.0)
    batches(controller, clock, WINDOW_BATCHES - 1, step_s=0.2, stalled=lambda: 5.4)
    clock.sleep(60)  # an evaluation
    batches(controller, clock, 1, stalled=lambda: 5.4)
    (window,) = policy.windows
    assert window.period_s == pytest.approx(0.2, abs=0.01)
    assert window.stalled == pytest.approx(0.4 / 62.9, rel=0.05)


def test_a_window_of_short_batches_lasts_long_enough(controller, policy, clock):
    batches(controller, clock, SETTLING_BATCHES + 399, step_s=0.001)
    assert not policy.windows
    batches(controller, clock, 10, step_s=0.001)
    assert len(policy.windows) == 1
