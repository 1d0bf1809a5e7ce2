"""Decisions from windows that the test makes up; and a made-up machine on which the controller has to find its way."""

from dataclasses import replace

import pytest

from penstock.core.hops import Hop
from penstock.engine.autotune import MOST_TASK_S, REST, AutotunePolicy, Knob, Knobs, TuningWindow

KNOBS = Knobs(readers=Knob(4, 1, 32), workers=Knob(4, 4, 16), look_ahead=Knob(4, 1, 7), task_s=0.004)


def window(read=(0.5, 0.0, 0.5), decode=(0.5, 0.0, 0.5), waited=0.3, mb_per_s=100.0, decoding=1.0, samples=1000):
    """One second; `read` and `decode` are shares of busy, starved, blocked."""
    return TuningWindow(
        seconds=1.0,
        waited_s=waited,
        bytes_read=int(mb_per_s * 1e6),
        read=Hop("read", *read),
        decode=Hop("decode", *decode),
        decoding_s=decode[0] * decoding,
        tasks=200,
        samples=samples,
    )


READING = {"read": (1.0, 0.0, 0.0), "decode": (0.3, 0.7, 0.0)}
DECODING = {"read": (0.2, 0.0, 0.8), "decode": (0.98, 0.0, 0.02)}
STRAGGLER = {"read": (0.1, 0.0, 0.9), "decode": (0.5, 0.0, 0.5)}


@pytest.mark.parametrize("hops", [READING, DECODING, STRAGGLER])
def test_nothing_is_turned_while_the_training_loop_does_not_wait(hops):
    assert AutotunePolicy().look(window(**hops, waited=0.01), KNOBS) is None


def test_slow_reading_gets_twice_the_reads_in_flight():
    change = AutotunePolicy().look(window(**READING), KNOBS)
    assert (change.name, change.old, change.new) == ("readers", 4, 8)
    assert str(change) == (
        "readers 4 → 8: workers starved 70% of the time with every read in flight; trying for more than 100 MB/s"
    )


def test_slow_decoding_gets_twice_the_workers():
    change = AutotunePolicy().look(window(**DECODING), KNOBS)
    assert (change.name, change.old, change.new) == ("workers", 4, 8)
    assert "busy 98% of the time while the training loop waited 30%" in change.reason


def test_stragglers_get_more_look_ahead():
    change = AutotunePolicy().look(window(**STRAGGLER), KNOBS)
    assert (change.name, change.old, change.new) == ("look_ahead", 4, 6)


def test_look_ahead_grows_as_long_as_it_helps_and_memory_has_time_to_be_made():
    knobs = replace(KNOBS, look_ahead=Knob(4, 1, 60))
    controller, found = AutotunePolicy(), []
    for samples in (1000, 500, 1100, 500, 1110, 1200):
        change = controller.look(window(**STRAGGLER, samples=samples), knobs)
        found.append(None if change is None else change.new)
        knobs = knobs if change is None else knobs.turned(change)
    assert found == [6, None, 9, None, None, None]
    looks = [controller.look(window(**STRAGGLER, samples=1200), knobs) for _ in range(REST)]
    assert [change.new for change in looks if change is not None] == [13]


def test_what_more_look_ahead_once_gave_is_no_measure_for_later():
    knobs = replace(KNOBS, look_ahead=Knob(4, 1, 60))
    controller = AutotunePolicy()
    assert controller.look(window(**STRAGGLER, samples=1000), knobs).new == 6
    for _ in range(3):
        assert controller.look(window(waited=0.0, samples=1000), knobs) is None
    assert controller.look(window(**STRAGGLER, samples=400), knobs).new == 6


def test_workers_that_are_busy_but_often_held_up_get_more_look_ahead():
    knobs = replace(KNOBS, workers=Knob(16, 4, 16))
    hops = {"read": (0.0, 0.0, 1.0), "decode": (0.94, 0.0, 0.06)}
    assert AutotunePolicy().look(window(**hops), knobs).name == "look_ahead"
    assert AutotunePolicy().look(window(**{**hops, "decode": (0.97, 0.0, 0.03)}), knobs) is None


def test_costly_handing_over_makes_tasks_longer():
    change = AutotunePolicy().look(window(**DECODING, decoding=0.7), KNOBS)
    assert (change.name, change.old, change.new) == ("task_s", 0.004, 0.008)
    assert "30% went into handing over" in change.reason
    longest = replace(KNOBS, task_s=MOST_TASK_S)
    assert AutotunePolicy().look(window(**DECODING, decoding=0.7), longest).name == "workers"


@pytest.mark.parametrize("hops", [READING, DECODING, STRAGGLER])
def test_what_the_user_has_set_is_never_turned(hops):
    fixed = Knobs(Knob(4, 4, 4), Knob(4, 4, 4), Knob(4, 4, 4), MOST_TASK_S)
    controller = AutotunePolicy()
    assert [controller.look(window(**hops), fixed) for _ in range(5)] == [None] * 5


def test_a_knob_stops_at_its_end():
    knobs = replace(KNOBS, workers=Knob(15, 4, 16))
    assert AutotunePolicy().look(window(**DECODING), knobs).new == 16
    assert AutotunePolicy().look(window(**DECODING), replace(KNOBS, workers=Knob(16, 4, 16))) is None


class Machine:
    """Storage whose bandwidth depends on the reads in flight, before workers that could do far more."""

    def __init__(self, mb_per_s, knobs=KNOBS):
        self.mb_per_s, self.knobs, self.controller, self.log = mb_per_s, knobs, AutotunePolicy(), []

    def run(self, looks):
        for _ in range(looks):
            change = self.controller.look(window(**READING, mb_per_s=self.mb_per_s(self.knobs.readers.now)), self.knobs)
            if change is not None:
                self.knobs = self.knobs.turned(change)
                self.log.append(str(change))
        return self.knobs.readers.now


def test_storage_that_likes_many_reads_gets_them():
    assert Machine(lambda n: 50.0 * n).run(20) == 32


def test_storage_that_is_full_at_eight_stays_at_eight():
    machine = Machine(lambda n: 50.0 * min(n, 8) - n)
    assert machine.run(20) == 8
    assert "more is no help" in machine.log[-1] or "too few" in machine.log[-1]


def test_a_disk_that_thrashes_ends_with_one_read_at_a_time():
    assert Machine(lambda n: 150.0 / n).run(20) == 1


def test_where_the_number_makes_no_difference_fewer_are_kept_and_left_alone():
    machine = Machine(lambda n: 100.0)
    assert machine.run(REST) == 2
    assert len(machine.log) == 2


def test_after_a_rest_it_is_tried_again():
    machine = Machine(lambda n: 100.0)
    machine.run(10)
    seen = len(machine.log)
    machine.mb_per_s = lambda n: 100.0 * n
    machine.run(REST + 10)
    assert machine.knobs.readers.now == 32
    assert len(machine.log) > seen


def test_each_change_is_one_line_with_a_reason():
    machine = Machine(lambda n: 150.0 / n)
    machine.run(20)
    assert all("\n" not in line and ": " in line for line in machine.log)
