"""The code of a worker process, called in this process with plain queues."""

import gc
import json
import pickle
import queue
import subprocess
import sys

import pytest
from tests.support import watcher_helpers

from penstock.watcher.dataloader.worker_process import WorkerRecorder, WorkerTelemetry


def make_telemetry(folder, **settings):
    settings = {"in_order": True, "iterable": False, "init_fn": None, **settings}
    return WorkerTelemetry(folder=str(folder), loader=1, epoch=4, clock_start=0.0, workers_started_s=0.0, **settings)


class _ResumeIteration:
    """Has the name of the message with which torch begins a new epoch of persistent workers."""


class ExceptionWrapper:
    """Has the name of the object that torch sends instead of a batch after an exception."""


class PatchableQueue(queue.Queue):
    """A queue whose methods can be replaced, like torch's."""


class FakeWorkerLoop:
    """Moves tasks and batches through the two queues as torch's worker loop does."""

    def __init__(self, folder, **settings):
        self.folder = folder
        self.tasks, self.batches = PatchableQueue(), PatchableQueue()
        telemetry = make_telemetry(folder, **settings)
        self.recorder = WorkerRecorder(telemetry, 2, watcher_helpers.Numbers(), stateful=False)
        self.recorder.wrap_queues(self.tasks, self.batches)

    def work_on(self, task, batch="batch"):
        """Take a task and send its batch; nothing is sent if `batch` is None."""
        self.tasks.put(task)
        taken = self.tasks.get()
        if batch is not None:
            self.batches.put((taken[0], batch))
        return taken

    def messages(self):
        (path,) = self.folder.iterdir()
        return [json.loads(line) for line in path.read_text().splitlines()]

    def fetches(self):
        return [message for message in self.messages() if message.get("line", {}).get("kind") == "fetch"]


def test_each_batch_that_leaves_is_written_with_its_task_number(tmp_path):
    loop = FakeWorkerLoop(tmp_path)
    assert loop.work_on((0, [5, 6])) == (0, [5, 6])
    loop.work_on((3, [7]))
    assert [loop.batches.get(), loop.batches.get()] == [(0, "batch"), (3, "batch")]
    lines = [message["line"] for message in loop.fetches()]
    assert [(line["batch"], line["worker"], line["samples"], line["pass"]) for line in lines] == [
        (0, 2, 2, 4),
        (3, 2, 1, 4),
    ]


def test_a_task_that_raised_has_no_fetch_line(tmp_path):
    loop = FakeWorkerLoop(tmp_path)
    loop.work_on((0, [5]), ExceptionWrapper())
    loop.work_on((1, [6]))
    assert [message["line"]["batch"] for message in loop.fetches()] == [1]


def test_tasks_of_an_iterable_dataset_that_give_no_batch_are_reported(tmp_path):
    loop = FakeWorkerLoop(tmp_path, iterable=True)
    loop.work_on((0, [None]))
    loop.work_on((1, [None]), ExceptionWrapper())
    loop.work_on((2, [None]), None)
    loop.work_on((3, [None]))
    reported = [(message["task"], "line" in message) for message in loop.messages() if "task" in message]
    assert reported == [(0, True), (1, False), (2, False), (3, True)]


def test_messages_of_a_later_epoch_of_persistent_workers_carry_its_start(tmp_path):
    loop = FakeWorkerLoop(tmp_path)
    loop.work_on((0, [5]))
    loop.tasks.put(_ResumeIteration())
    loop.batches.put((loop.tasks.get(), None))
    loop.work_on((0, [5]))
    assert ["since_s" in message for message in loop.fetches()] == [False, True]


def test_the_end_signal_closes_the_file(tmp_path):
    loop = FakeWorkerLoop(tmp_path)
    loop.tasks.put(None)
    assert loop.tasks.get() is None
    assert loop.messages()[-1] == {"closed": True}


def test_an_error_of_the_timer_is_reported_once_and_batches_still_leave(tmp_path, monkeypatch):
    loop = FakeWorkerLoop(tmp_path)
    monkeypatch.setattr(loop.recorder.timer, "finish", lambda samples: 1 / 0)
    loop.work_on((0, [5]))
    loop.work_on((1, [6]))
    assert [loop.batches.get()[0], loop.batches.get()[0]] == [0, 1]
    failures = [
        message["line"] for message in loop.messages() if message.get("line", {}).get("what") == "watcher_failed"
    ]
    assert [line["detail"] for line in failures] == [{"error": "ZeroDivisionError: division by zero"}]
    assert loop.messages()[-1] == {"closed": True}


def test_batches_still_leave_if_the_file_cannot_be_written(tmp_path):
    loop = FakeWorkerLoop(tmp_path)
    loop.recorder._writer.close()
    loop.work_on((0, [5]))
    loop.work_on((1, [6]))
    assert [loop.batches.get()[0], loop.batches.get()[0]] == [0, 1]


def test_outside_a_worker_telemetry_only_calls_the_users_function(tmp_path):
    assert make_telemetry(tmp_path, init_fn=hex)(255) == "0xff"
    assert make_telemetry(tmp_path)(255) is None
    assert list(tmp_path.iterdir()) == []


def test_telemetry_can_be_pickled(tmp_path):
    telemetry = make_telemetry(tmp_path, init_fn=watcher_helpers.seeded_init)
    assert pickle.loads(pickle.dumps(telemetry)) == telemetry


def test_the_users_function_is_called_even_if_the_folder_is_gone(tmp_path):
    def _worker_loop(init_fn, worker_id, dataset, index_queue, data_queue):
        return init_fn(worker_id)

    telemetry = make_telemetry(tmp_path / "gone", init_fn=hex)
    assert _worker_loop(telemetry, 10, watcher_helpers.Numbers(), PatchableQueue(), PatchableQueue()) == "0xa"


def test_the_traceback_of_the_users_error_shows_no_frame_of_penstock(tmp_path):
    def _worker_loop(init_fn, worker_id):
        init_fn(worker_id)

    with pytest.raises(ValueError) as caught:
        _worker_loop(make_telemetry(tmp_path, init_fn=watcher_helpers.bad_init), 0)
    names = [entry.name for entry in caught.traceback]
    del caught
    gc.collect()
    assert names[1:] == ["_worker_loop", "bad_init"]


def test_data_files_are_the_non_empty_files_that_are_read_and_are_not_code(tmp_path):
    shard, log, code = tmp_path / "a.tar", tmp_path / "log.txt", tmp_path / "m.py"
    for path in (shard, log, code):
        path.write_bytes(b"x" * 100)
    (empty := tmp_path / "empty.bin").touch()
    # A fresh process, because at most MAX_REPORTED_FILES are returned and other tests have left files open in this one.
    others = [str(code), str(empty), str(tmp_path / "gone.jpg"), str(tmp_path)]
    program = f"""
from penstock.watcher.dataloader.worker_process import data_files
with open({str(log)!r}, "ab"), open({str(shard)!r}, "rb"):
    print(*data_files({others}), sep="\\n")
print("opened earlier:", *data_files([{str(shard)!r}]), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(shard), "opened earlier:", str(shard)]
