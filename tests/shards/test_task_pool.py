"""Tasks on worker processes that may raise, exit or be killed. The work is `eval`, so tasks are expressions."""

import multiprocessing
import os
import signal
import threading

import pytest

from penstock.errors import DecodeError, WorkerCrash
from penstock.shards.task_pool import run_tasks

KILL = "__import__('os').kill(__import__('os').getpid(), 9)"
PID = "__import__('os').getpid()"

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this platform")


@pytest.fixture(autouse=True)
def _no_child_process_remains():
    yield
    assert multiprocessing.active_children() == []


def value_of(outcome):
    """Return the result, or the type of the error."""
    return outcome.result if outcome.error is None else type(outcome.error)


def test_every_task_has_its_result():
    tasks = [f"{number} * {number}" for number in range(30)]
    values = {outcome.task: value_of(outcome) for outcome in run_tasks(eval, tasks, workers=3)}
    assert values == {task: number * number for number, task in enumerate(tasks)}


def test_tasks_run_on_the_requested_number_of_other_processes():
    pids = {outcome.result for outcome in run_tasks(eval, [PID] * 20, workers=2)}
    assert os.getpid() not in pids
    assert len(pids) <= 2


def test_without_tasks_no_process_is_started():
    assert list(run_tasks(eval, [], workers=2)) == []


def test_a_result_of_none_is_a_result():
    [outcome] = run_tasks(eval, ["None"], workers=1)
    assert (outcome.result, outcome.error) == (None, None)


def test_tasks_run_without_a_given_number_of_workers():
    assert [outcome.result for outcome in run_tasks(eval, ["1"])] == [1]


def test_an_exception_is_a_result():
    outcomes = {outcome.task: outcome for outcome in run_tasks(eval, ["1", "1 / 0", "nonsense", "2"], workers=2)}
    assert type(outcomes["1 / 0"].error) is ZeroDivisionError
    assert type(outcomes["nonsense"].error) is NameError
    assert (outcomes["1"].result, outcomes["2"].result) == (1, 2)


RAISE_DECODE_ERROR = (
    'exec(\'from penstock.errors import DecodeError; raise DecodeError("bad", shard="a.tar", offset=5)\')'
)


def test_penstock_errors_keep_their_fields_between_processes():
    [outcome] = run_tasks(eval, [RAISE_DECODE_ERROR], workers=1)
    assert type(outcome.error) is DecodeError
    assert outcome.error.where() == {"shard": "a.tar", "offset": 5}


def test_a_killed_worker_loses_only_its_task():
    tasks = ["0", "1", KILL, "3", "4", "5", "6", "7"]
    outcomes = {outcome.task: outcome for outcome in run_tasks(eval, tasks, workers=2)}
    assert len(outcomes) == 8
    crash = outcomes.pop(KILL)
    assert type(crash.error) is WorkerCrash
    assert crash.error.reason == "worker process died: killed by SIGKILL"
    assert {task: outcome.result for task, outcome in outcomes.items()} == {task: int(task) for task in outcomes}


def test_all_tasks_have_outcomes_if_every_worker_is_killed_several_times():
    values = [value_of(outcome) for outcome in run_tasks(eval, [KILL, "1", KILL, KILL, "2", KILL], workers=2)]
    assert sorted(values, key=str) == sorted([WorkerCrash, 1, WorkerCrash, WorkerCrash, 2, WorkerCrash], key=str)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("__import__('os')._exit(3)", "exit code 3"),
        ("__import__('sys').exit(4)", "exit code 4"),
        ("__import__('os').kill(__import__('os').getpid(), 35)", "killed by signal 35"),
    ],
)
def test_the_exit_of_a_worker_is_a_worker_crash_with_the_reason(task, reason):
    outcomes = {outcome.task: outcome for outcome in run_tasks(eval, ["1", task, "2"], workers=1)}
    assert type(outcomes[task].error) is WorkerCrash
    assert reason in outcomes[task].error.reason
    assert (outcomes["1"].result, outcomes["2"].result) == (1, 2)


LOCAL_ERROR = "(_ for _ in ()).throw(type('Local', (Exception,), {})())"  # glossary: allow


@pytest.mark.parametrize("task", ["lambda: 0", LOCAL_ERROR])
def test_a_result_that_cannot_be_pickled_loses_only_its_task(task):
    outcomes = {outcome.task: outcome for outcome in run_tasks(eval, ["1", task, "2"], workers=1)}
    assert type(outcomes[task].error) is WorkerCrash
    assert "pickle" in outcomes[task].error.reason
    assert (outcomes["1"].result, outcomes["2"].result) == (1, 2)


def test_an_error_that_cannot_be_unpickled_loses_only_its_task(tmp_path, monkeypatch):
    """The error can be pickled but not unpickled, because its arguments are not those of its constructor."""
    (tmp_path / "odd_errors.py").write_text(
        "class NeedsTwo(Exception):\n"
        "    def __init__(self, one, two):\n"
        "        super().__init__(f'{one} {two}')\n"
        "def fail():\n"
        "    raise NeedsTwo(1, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    task = "__import__('odd_errors').fail()"
    outcomes = {outcome.task: outcome for outcome in run_tasks(eval, ["1", task, "2"], workers=1)}
    assert type(outcomes[task].error) is WorkerCrash
    assert "NeedsTwo" in outcomes[task].error.reason
    assert (outcomes["1"].result, outcomes["2"].result) == (1, 2)


class ExitsWhenUnpickled:
    """Work that ends the worker while it is unpickled, before the first task is received."""

    def __reduce__(self):
        return os._exit, (7,)

    def __call__(self, task):
        raise AssertionError("never called")


def test_the_death_of_a_worker_while_a_long_task_is_sent_is_a_worker_crash():
    values = [value_of(outcome) for outcome in run_tasks(ExitsWhenUnpickled(), [bytes(20 << 20)] * 2, workers=2)]
    assert values == [WorkerCrash, WorkerCrash]


def test_tasks_are_taken_only_when_a_worker_is_free():
    taken = []

    def tasks():
        for number in range(12):
            taken.append(number)
            yield str(number)

    finished = 0
    for outcome in run_tasks(eval, tasks(), workers=2):
        finished += 1
        assert len(taken) <= finished + 2
        assert outcome.error is None
    assert finished == len(taken) == 12


def test_closing_the_results_early_ends_all_processes():
    results = run_tasks(eval, ["1", *["__import__('threading').Event().wait()"] * 3], workers=3)
    assert next(results).result == 1
    assert multiprocessing.active_children() != []
    results.close()
    assert multiprocessing.active_children() == []


def test_an_error_in_the_iterable_of_tasks_ends_all_processes():
    def tasks():
        yield "1"
        raise OSError("the list of tasks broke")

    with pytest.raises(OSError, match="the list of tasks broke"):
        list(run_tasks(eval, tasks(), workers=1))
    assert multiprocessing.active_children() == []


def test_long_tasks_and_results_are_transferred():
    [outcome] = run_tasks(eval, [f"len('{'x' * 3_000_000}') * b'y'"], workers=1)
    assert outcome.result == b"y" * 3_000_000


def test_tasks_run_in_a_process_with_threads():
    """Forking could copy a lock that another thread holds; spawning does not."""
    lock, stop = threading.Lock(), threading.Event()

    def hold_lock():
        with lock:
            stop.wait()

    def run_two_tasks():
        values.extend(value_of(outcome) for outcome in run_tasks(eval, ["1", "2"], workers=1))

    values = []
    lock_threads = [threading.Thread(target=hold_lock) for _ in range(4)]
    for thread in lock_threads:
        thread.start()
    task_threads = [threading.Thread(target=run_two_tasks) for _ in range(2)]
    for thread in task_threads:
        thread.start()
    for thread in task_threads:
        thread.join()
    stop.set()
    for thread in lock_threads:
        thread.join()
    assert sorted(values) == [1, 1, 2, 2]


def test_an_interrupt_of_the_process_group_does_not_end_the_workers():
    """Ctrl-C goes to every process of the terminal; only the parent reacts to it."""
    task = "(__import__('os').kill(__import__('os').getpid(), 2), 'alive')[1]"
    assert [outcome.result for outcome in run_tasks(eval, [task], workers=1)] == ["alive"]
