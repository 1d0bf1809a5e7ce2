"""Which worker gets which slots, and what happens to the tasks of workers that die."""

import time

import numpy as np
import pytest
from tests.support.engine_fakes import Numbers

from penstock.core.contracts import BatchRequest, TaskResult
from penstock.engine import dispatch as dispatch_module
from penstock.engine.batch import Batch
from penstock.engine.dispatch import MAX_FAILED_STARTS, Dispatch
from penstock.engine.worker_main import encode_task
from penstock.errors import WorkerCrash


class IdleWorker:
    """A worker that only records its tasks."""

    replaceable = True

    def __init__(self, ready=True):
        self.name = "idle worker"
        self.ready = ready
        self.tasks = []
        self.stopped = False
        self.stacks = 0

    def send(self, task):
        self.tasks.append(task)

    def print_stack(self):
        self.stacks += 1

    def stop(self):
        self.stopped = True

    def join(self, timeout_s):
        return True


class FullCache:
    """A block cache that has every block."""

    def pin(self, blocks):
        return np.zeros(len(blocks), np.int64)


CACHE = FullCache()


def make(count=2, timeout_s=60.0):
    dispatch = Dispatch(Numbers(blockless=True), 4096, timeout_s, IdleWorker)
    workers = [IdleWorker() for _ in range(count)]
    for worker in workers:
        dispatch.add(worker)
    return dispatch, workers


def batch(number=0, size=8, slab=0, first=False, blocks=-1):
    request = BatchRequest(0, np.arange(number * 100, number * 100 + size), 0, number=number, first_of_epoch=first)
    made = Batch(request, np.full(size, blocks), slab)
    made.mark_loaded(made.blocks == -1)
    return made


def slots(worker):
    return [task.rows[:, 0].tolist() for task in worker.tasks]


def finish(dispatch, worker, busy_s=0.001):
    slot = dispatch.slot_of(worker)
    return dispatch.finish(slot, TaskResult(slot.tasks[0].task.number, [], busy_s, 0.0))


def test_a_batch_is_spread_over_all_workers_and_one_task_of_each_waits():
    dispatch, (one, two) = make()
    dispatch.assign([batch(size=8)], CACHE)
    assert (slots(one), slots(two)) == ([[0, 1], [4, 5]], [[2, 3], [6, 7]])
    assert dispatch.in_progress == 4


def test_a_batch_is_spread_over_stopgaps_before_there_are_processes():
    dispatch, _ = make(0)
    workers = [IdleWorker() for _ in range(4)]
    for worker in workers:
        dispatch.add(worker, stopgap=True)
    dispatch.assign([batch(size=16)], CACHE)
    assert [[len(task) for task in slots(worker)] for worker in workers] == [[2, 2]] * 4


def test_the_earliest_batch_goes_first_and_a_task_never_spans_two():
    dispatch, (one, two) = make()
    early, late = batch(0, size=3), batch(1, size=3, slab=1)
    dispatch.assign([early, late], CACHE)
    samples = [task.rows[:, 1].tolist() for pair in zip(one.tasks, two.tasks, strict=True) for task in pair]
    assert samples == [[0], [1], [2], [100]]
    assert [task.slab_start for task in (*one.tasks, *two.tasks)] == [0, 0, 0, 4096]


def test_a_worker_that_is_not_ready_gets_no_task():
    dispatch, (one, two) = make()
    one.ready = False
    dispatch.assign([batch()], CACHE)
    assert one.tasks == []
    assert len(two.tasks) == 2


def test_slots_whose_block_is_not_loaded_are_not_assigned():
    dispatch, (one, two) = make()
    half = batch(size=8, blocks=[7, 7, 7, 7, -1, -1, -1, -1])
    dispatch.assign([half], CACHE)
    assert sorted(slot for task in slots(one) + slots(two) for slot in task) == [4, 5, 6, 7]


def test_samples_that_take_very_little_time_are_not_spread_one_by_one():
    dispatch, workers = make(8)
    dispatch.assign([batch(size=16)], CACHE)
    assert [len(task.rows) for worker in workers for task in worker.tasks] == [1] * 16
    for worker in workers:
        finish(dispatch, worker, busy_s=0.0002)
    dispatch.assign([batch(1, size=16)], CACHE)
    assert sorted(len(worker.tasks[-1].rows) for worker in workers)[-2:] == [6, 10]


def test_tasks_become_a_few_milliseconds_of_work():
    dispatch, (one,) = make(1)
    dispatch.assign([batch(size=64)], CACHE)
    assert len(one.tasks[0].rows) == 32
    finish(dispatch, one, busy_s=32 * dispatch_module.TASK_S / 4)
    finish(dispatch, one, busy_s=32 * dispatch_module.TASK_S / 4)
    dispatch.assign([batch(1, size=64)], CACHE)
    assert len(one.tasks[2].rows) == 4


def samples_of_first_task(buffered_s=0.0, batches=1, *, first_of_epoch=False):
    """The samples in the first task of one of 8 workers, where a sample takes a millisecond and a batch has 32."""
    dispatch, (one, *_) = make(8)
    dispatch.assign([batch(size=8)], CACHE)
    finish(dispatch, one, busy_s=0.001)
    dispatch.clear_retries()
    numbers = range(1, batches + 1)
    dispatch.assign([batch(number, 32, first=first_of_epoch and number == 1) for number in numbers], CACHE, buffered_s)
    return len(one.tasks[1].rows)


def test_samples_that_the_training_loop_waits_for_are_spread_over_all_workers():
    assert [samples_of_first_task(batches=batches) for batches in (1, 4, 7, 100)] == [2, 8, 14, 16]  # 16 take TASK_S


def test_the_first_batch_of_an_epoch_is_spread_over_all_workers_however_many_follow():
    assert [samples_of_first_task(batches=batches, first_of_epoch=True) for batches in (1, 7, 100)] == [2, 2, 2]


def test_while_there_are_complete_batches_a_task_takes_half_the_time_they_last():
    buffered = (0.0, 0.001, 0.010, 0.030, 1.0)
    assert [samples_of_first_task(seconds) for seconds in buffered] == [2, 2, 5, 15, 16]


def test_messages_stay_small_enough_to_wait_in_a_pipe():
    dispatch, (one,) = make(1)
    for number in range(3):
        dispatch.assign([batch(number, size=100_000)], CACHE)
        while dispatch.workers[0].tasks:
            finish(dispatch, one, busy_s=1e-9)
    assert max(len(encode_task(task)) for task in one.tasks) <= dispatch_module.MAX_MESSAGE_BYTES + 64
    assert len(one.tasks[-1].rows) > dispatch_module.FIRST_ROWS


def test_a_slow_worker_gets_one_task_at_a_time():
    dispatch, (one, two) = make()
    for _ in range(30):
        dispatch.assign([batch(size=8)], CACHE)
        for worker, busy_s in ((one, 0.001), (two, 0.5)):
            while dispatch.slot_of(worker).tasks:
                finish(dispatch, worker, busy_s)
    one.tasks.clear()
    two.tasks.clear()
    dispatch.assign([batch(size=64)], CACHE)
    assert (len(one.tasks), len(two.tasks)) == (2, 1)


def test_the_current_task_of_a_dead_worker_is_divided_into_samples_and_its_waiting_task_is_not():
    dispatch, (one, _) = make()
    dispatch.assign([batch(size=8)], CACHE)
    again = dispatch.replace_dead(dispatch.slot_of(one), WorkerCrash("x"))
    assert [(task.slots.tolist(), task.crashes) for task in again] == [([0], 1), ([1], 1), ([4, 5], 0)]
    assert one.stopped
    assert len(dispatch.workers) == 2
    assert dispatch.in_progress == 2
    assert dispatch.deaths == 1


def test_a_dead_worker_that_cannot_be_killed_is_an_error_since_it_may_still_write(monkeypatch):
    dispatch, (one, _) = make()
    dispatch.assign([batch(size=8)], CACHE)
    monkeypatch.setattr(one, "join", lambda timeout_s: False)
    with pytest.raises(WorkerCrash, match="cannot be killed"):
        dispatch.replace_dead(dispatch.slot_of(one), WorkerCrash("stuck"))


def test_no_worker_is_added_after_all_have_been_stopped():
    made = []

    def make_worker():
        made.append(IdleWorker())
        dispatch.stop_all(0.0)  # as another thread may do in the middle of it
        return made[-1]

    dispatch = Dispatch(Numbers(blockless=True), 4096, 60.0, make_worker)
    dispatch.add_workers(3)
    assert [worker.stopped for worker in made] == [True]


def test_tasks_to_be_done_again_go_before_all_others():
    dispatch, (one, two) = make()
    first = batch(size=8)
    dispatch.assign([first], CACHE)
    for task in dispatch.replace_dead(dispatch.slot_of(one), WorkerCrash("x")):
        first.in_progress -= len(task.slots)
        dispatch.retry(task)
    for _ in range(2):
        finish(dispatch, two, busy_s=0.016)
    dispatch.assign([batch(1)], CACHE)
    new = dispatch.workers[-1].worker
    assert slots(two)[2:] + slots(new) == [[0], [4, 5], [1], [0, 1]]
    assert [task.crashes for slot in dispatch.workers for task in slot.tasks] == [1, 0, 1, 0]


def test_tasks_of_an_abandoned_batch_are_not_done_again():
    dispatch, (one,) = make(1)
    first = batch(size=8)
    dispatch.assign([first], CACHE)
    for task in dispatch.replace_dead(dispatch.slot_of(one), WorkerCrash("x")):
        dispatch.retry(task)
    first.abandoned = True
    dispatch.assign([], CACHE)
    assert dispatch.workers[0].worker.tasks == []
    assert dispatch.retries == 0


def test_workers_that_never_get_ready_are_not_replaced_without_end():
    dispatch, _ = make(1)
    for _ in range(MAX_FAILED_STARTS - 1):
        dispatch.workers[0].worker.ready = False
        dispatch.replace_dead(dispatch.workers[0], WorkerCrash("no good"))
    dispatch.workers[0].worker.ready = False
    with pytest.raises(WorkerCrash, match=r"no good.*stderr"):
        dispatch.replace_dead(dispatch.workers[0], WorkerCrash("no good"))


def test_an_overdue_worker_prints_its_stack_once_and_has_time_for_that(monkeypatch):
    dispatch, (one, two) = make(timeout_s=10.0)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    dispatch.assign([batch(size=4)], CACHE)
    finish(dispatch, two)
    now[0] = 109.0
    assert dispatch.overdue() == []
    now[0] = 111.0
    finish(dispatch, two)
    assert dispatch.overdue() == []
    assert dispatch.overdue() == []
    assert (one.stacks, two.stacks) == (1, 0)
    now[0] += dispatch_module.STACK_GRACE_S + 0.1
    assert [slot.worker for slot in dispatch.overdue()] == [one]
    assert one.stacks == 1


def test_a_worker_that_finishes_after_printing_its_stack_is_no_longer_overdue(monkeypatch):
    dispatch, (one,) = make(1, timeout_s=10.0)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    dispatch.assign([batch(size=4)], CACHE)
    now[0] = 111.0
    dispatch.overdue()
    finish(dispatch, one)
    now[0] = 112.0
    assert dispatch.overdue() == []
    now[0] = 122.0
    dispatch.overdue()
    assert one.stacks == 2
