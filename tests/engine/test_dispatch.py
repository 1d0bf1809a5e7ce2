import time

import numpy as np
import pytest
from tests.support.engine_fakes import Numbers

from penstock.core.contracts import BatchRequest, TaskResult
from penstock.engine import dispatch as module
from penstock.engine.batch import Batch
from penstock.engine.dispatch import MAX_STILLBORN, Dispatch
from penstock.engine.worker_main import encode_task
from penstock.errors import WorkerCrash


class Hand:
    """A worker that does nothing but remember."""

    replaceable = True

    def __init__(self, ready=True):
        self.name = "hand"
        self.ready = ready
        self.tasks = []
        self.stopped = False
        self.stacks = 0

    def send(self, task):
        self.tasks.append(task)

    def show_stack(self):
        self.stacks += 1

    def stop(self):
        self.stopped = True

    def join(self, timeout_s):
        return True


class Everywhere:
    """A residency in which everything is there."""

    def pin_all(self, blocks):
        return np.zeros(len(blocks), np.int64)


HERE = Everywhere()


def make(workers=2, deadline_s=60.0, supply=None):
    dispatch = Dispatch(supply or Numbers(blockless=True), 4096, deadline_s, Hand)
    hands = [Hand() for _ in range(workers)]
    for hand in hands:
        dispatch.seat(hand)
    return dispatch, hands


def batch(number=0, size=8, slab=0, first=False, blocks=-1):
    request = BatchRequest(0, np.arange(number * 100, number * 100 + size), 0, number=number, first_of_epoch=first)
    made = Batch(request, np.full(size, blocks), slab)
    made.bytes_here(made.blocks == -1)
    return made


def slots(hand):
    return [task.rows[:, 0].tolist() for task in hand.tasks]


def finish(dispatch, hand, busy_s=0.001):
    seat = dispatch.seat_of(hand)
    given = seat.given[0]
    return dispatch.finished(seat, TaskResult(given.task.number, [], busy_s, 0.0))


def test_a_batch_is_spread_over_all_workers_with_one_task_in_waiting():
    dispatch, (one, two) = make()
    dispatch.give_out([batch(size=8)], HERE)
    assert (slots(one), slots(two)) == ([[0, 1], [4, 5]], [[2, 3], [6, 7]])
    assert dispatch.under_way == 4


def test_it_is_spread_over_those_who_stand_in_before_any_worker_is_hired():
    dispatch, _ = make(workers=0)
    hands = [Hand() for _ in range(4)]
    for hand in hands:
        dispatch.seat(hand, stopgap=True)
    dispatch.give_out([batch(size=16)], HERE)
    assert [[len(piece) for piece in slots(hand)] for hand in hands] == [[2, 2]] * 4


def test_the_earliest_batch_goes_first_and_a_task_never_spans_two():
    dispatch, (one, two) = make()
    early, late = batch(0, size=3), batch(1, size=3, slab=1)
    dispatch.give_out([early, late], HERE)
    first = [task.rows[:, 1].tolist() for pair in zip(one.tasks, two.tasks, strict=True) for task in pair]
    assert first == [[0], [1], [2], [100]]
    assert [task.slab_start for task in (*one.tasks, *two.tasks)] == [0, 0, 0, 4096]


def test_a_worker_that_is_not_ready_gets_nothing():
    dispatch, (one, two) = make()
    one.ready = False
    dispatch.give_out([batch()], HERE)
    assert one.tasks == []
    assert len(two.tasks) == 2


def test_slots_without_bytes_are_not_given_out():
    dispatch, (one, two) = make()
    half = batch(size=8, blocks=[7, 7, 7, 7, -1, -1, -1, -1])
    dispatch.give_out([half], HERE)
    assert sorted(slot for task in slots(one) + slots(two) for slot in task) == [4, 5, 6, 7]


def test_samples_that_take_no_time_are_not_spread_one_by_one():
    dispatch, hands = make(workers=8)
    dispatch.give_out([batch(size=16)], HERE)
    assert [len(task.rows) for hand in hands for task in hand.tasks] == [1] * 16
    for hand in hands:
        finish(dispatch, hand, busy_s=0.0002)
    dispatch.give_out([batch(1, size=16)], HERE)
    assert sorted(len(hand.tasks[-1].rows) for hand in hands)[-2:] == [6, 10]


def test_tasks_become_a_few_milliseconds_of_work():
    dispatch, (one,) = make(workers=1)
    big = batch(size=64)
    dispatch.give_out([big], HERE)
    assert len(one.tasks[0].rows) == 32
    finish(dispatch, one, busy_s=32 * module.TASK_S / 4)
    finish(dispatch, one, busy_s=32 * module.TASK_S / 4)
    dispatch.give_out([batch(1, size=64)], HERE)
    assert len(one.tasks[2].rows) == 4


def first_task(spare_s=0.0, batches=1, *, begins=False):
    """Of 8 workers, when a sample takes a millisecond: how many samples of batches of 32 it has."""
    dispatch, (one, *_) = make(workers=8)
    dispatch.give_out([batch(size=8)], HERE)
    finish(dispatch, one, busy_s=0.001)
    dispatch.forget_retries()
    open_batches = [batch(number, size=32, first=begins and number == 1) for number in range(1, batches + 1)]
    dispatch.give_out(open_batches, HERE, spare_s)
    return len(one.tasks[1].rows)


def test_what_the_loop_waits_for_is_spread_over_everybody_whatever_batch_it_is_in():
    assert [first_task(batches=batches) for batches in (1, 4, 7, 100)] == [2, 8, 14, 16]  # 16 are TASK_S


def test_the_first_batch_of_a_pass_is_spread_over_everybody_however_many_follow_it():
    assert [first_task(batches=batches, begins=True) for batches in (1, 7, 100)] == [2, 2, 2]


def test_while_the_loop_has_batches_a_task_takes_half_the_time_they_last():
    assert [first_task(spare_s) for spare_s in (0.0, 0.001, 0.010, 0.030, 1.0)] == [2, 2, 5, 15, 16]


def test_messages_stay_small_enough_to_wait_in_a_pipe():
    dispatch, (one,) = make(workers=1)
    for number in range(3):
        dispatch.give_out([batch(number, size=100_000)], HERE)
        while dispatch.seats[0].given:
            finish(dispatch, one, busy_s=1e-9)
    assert max(len(encode_task(task)) for task in one.tasks) <= module.MESSAGE_BYTES + 64
    assert len(one.tasks[-1].rows) > module.FIRST_ROWS


def test_a_slow_worker_has_no_task_in_waiting():
    dispatch, (one, two) = make()
    for _ in range(30):
        dispatch.give_out([batch(size=8)], HERE)
        for hand, busy_s in ((one, 0.001), (two, 0.5)):
            while dispatch.seat_of(hand).given:
                finish(dispatch, hand, busy_s)
    one.tasks.clear()
    two.tasks.clear()
    dispatch.give_out([batch(size=64)], HERE)
    assert (len(one.tasks), len(two.tasks)) == (2, 1)


def test_what_a_dead_worker_was_at_is_cut_into_single_suspects_and_what_waited_is_not():
    dispatch, (one, _) = make()
    dispatch.give_out([batch(size=8)], HERE)
    again = dispatch.bury(dispatch.seat_of(one), WorkerCrash("x"))
    assert [(given.slots.tolist(), given.strikes) for given in again] == [([0], 1), ([1], 1), ([4, 5], 0)]
    assert one.stopped
    assert len(dispatch.seats) == 2
    assert dispatch.under_way == 2
    assert dispatch.deaths == 1


def test_a_dead_worker_that_cannot_be_killed_is_an_error_since_it_may_still_write(monkeypatch):
    dispatch, (one, _) = make()
    dispatch.give_out([batch(size=8)], HERE)
    monkeypatch.setattr(one, "join", lambda timeout_s: False)
    with pytest.raises(WorkerCrash, match="cannot be killed"):
        dispatch.bury(dispatch.seat_of(one), WorkerCrash("stuck"))


def test_nobody_is_hired_once_all_have_gone_home():
    hired = []

    def hire():
        hired.append(Hand())
        dispatch.dismiss_all(0.0)  # by another thread, in the middle of it
        return hired[-1]

    dispatch = Dispatch(Numbers(blockless=True), 4096, 60.0, hire)
    dispatch.add_workers(3)
    assert [hand.stopped for hand in hired] == [True]


def test_what_must_be_done_again_goes_before_everything_else():
    dispatch, (one, two) = make()
    first = batch(size=8)
    dispatch.give_out([first], HERE)
    for given in dispatch.bury(dispatch.seat_of(one), WorkerCrash("x")):
        first.under_way -= len(given.slots)
        dispatch.retry(given)
    for _ in range(2):
        finish(dispatch, two, busy_s=0.016)
    dispatch.give_out([batch(1)], HERE)
    new = dispatch.seats[-1].worker
    assert slots(two)[2:] + slots(new) == [[0], [4, 5], [1], [0, 1]]
    assert [given.strikes for seat in dispatch.seats for given in seat.given] == [1, 0, 1, 0]


def test_what_was_given_up_is_not_done_again():
    dispatch, (one,) = make(workers=1)
    first = batch(size=8)
    dispatch.give_out([first], HERE)
    for given in dispatch.bury(dispatch.seat_of(one), WorkerCrash("x")):
        dispatch.retry(given)
    first.abandoned = True
    dispatch.give_out([], HERE)
    assert dispatch.seats[0].worker.tasks == []
    assert dispatch.retries == 0


def test_workers_that_never_get_ready_are_not_replaced_without_end():
    dispatch, _ = make(workers=1)
    for _ in range(MAX_STILLBORN - 1):
        dispatch.seats[0].worker.ready = False
        dispatch.bury(dispatch.seats[0], WorkerCrash("no good"))
    dispatch.seats[0].worker.ready = False
    with pytest.raises(WorkerCrash, match=r"no good.*stderr"):
        dispatch.bury(dispatch.seats[0], WorkerCrash("no good"))


def test_an_overdue_worker_prints_its_stack_once_and_gets_time_for_it(monkeypatch):
    dispatch, (one, two) = make(deadline_s=10.0)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    dispatch.give_out([batch(size=4)], HERE)
    finish(dispatch, two)
    now[0] = 109.0
    assert dispatch.overdue() == []
    now[0] = 111.0
    finish(dispatch, two)
    assert dispatch.overdue() == []
    assert dispatch.overdue() == []
    assert (one.stacks, two.stacks) == (1, 0)
    now[0] += module.GRACE_S + 0.1
    assert [seat.worker for seat in dispatch.overdue()] == [one]
    assert one.stacks == 1


def test_a_worker_that_answers_after_its_warning_is_forgiven(monkeypatch):
    dispatch, (one,) = make(workers=1, deadline_s=10.0)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    dispatch.give_out([batch(size=4)], HERE)
    now[0] = 111.0
    dispatch.overdue()
    finish(dispatch, one)
    now[0] = 112.0
    assert dispatch.overdue() == []
    now[0] = 122.0
    dispatch.overdue()
    assert one.stacks == 2
