"""What runs in a worker, driven by hand: queues without processes."""

import gc
import json
import pickle
import queue

import pytest
from tests.support import watcher_helpers as observing

from penstock.watcher.dataloader.worker_process import WorkerRecorder, WorkerTelemetry, data_files


def make_telemetry(folder, **settings):
    settings = {"in_order": True, "iterable": False, "init_fn": None, **settings}
    return WorkerTelemetry(folder=str(folder), loader=1, epoch=4, clock_start=0.0, workers_started_s=0.0, **settings)


class _ResumeIteration:
    """Stands for torch's own mark that a pass begins anew."""


class ExceptionWrapper:
    """Stands for torch's, which is known by its name."""


class Loop:
    """A worker's loop between two queues."""

    def __init__(self, folder, **settings):
        self.folder = folder
        self.tasks, self.batches = _Queue(), _Queue()
        self.worker = WorkerRecorder(make_telemetry(folder, **settings), 2, observing.Numbers(), stateful=False)
        self.worker.wrap_queues(self.tasks, self.batches)

    def make(self, task, data="batch"):
        """One round; data None: the loop passes over the task."""
        self.tasks.put(task)
        got = self.tasks.get()
        if data is not None:
            self.batches.put((got[0], data))
        return got

    def notes(self):
        (path,) = self.folder.iterdir()
        return [json.loads(line) for line in path.read_text().splitlines()]

    def fetches(self):
        return [note for note in self.notes() if note.get("line", {}).get("kind") == "fetch"]


class _Queue(queue.Queue):
    """A queue whose methods can be replaced, like torch's."""


def test_a_batch_that_leaves_has_a_line_with_its_number(tmp_path):
    loop = Loop(tmp_path)
    assert loop.make((0, [5, 6])) == (0, [5, 6])
    loop.make((3, [7]))
    assert [loop.batches.get(), loop.batches.get()] == [(0, "batch"), (3, "batch")]
    lines = [note["line"] for note in loop.fetches()]
    assert [(line["batch"], line["worker"], line["samples"], line["pass"]) for line in lines] == [
        (0, 2, 2, 4),
        (3, 2, 1, 4),
    ]


def test_an_error_that_leaves_has_none(tmp_path):
    loop = Loop(tmp_path)
    loop.make((0, [5]), ExceptionWrapper())
    loop.make((1, [6]))
    assert [note["line"]["batch"] for note in loop.fetches()] == [1]


def test_tasks_of_an_iterable_dataset_that_come_to_nothing_are_told(tmp_path):
    loop = Loop(tmp_path, iterable=True)
    loop.make((0, [None]))
    loop.make((1, [None]), ExceptionWrapper())
    loop.make((2, [None]), None)
    loop.make((3, [None]))
    told = [(note["task"], "line" in note) for note in loop.notes() if "task" in note]
    assert told == [(0, True), (1, False), (2, False), (3, True)]


def test_a_pass_that_begins_anew_is_marked(tmp_path):
    loop = Loop(tmp_path)
    loop.make((0, [5]))
    loop.tasks.put(_ResumeIteration())
    loop.batches.put((loop.tasks.get(), None))
    loop.make((0, [5]))
    assert ["since_s" in note for note in loop.fetches()] == [False, True]


def test_the_last_task_closes_the_file(tmp_path):
    loop = Loop(tmp_path)
    loop.tasks.put(None)
    assert loop.tasks.get() is None
    assert loop.notes()[-1] == {"closed": True}


def test_a_failure_is_said_once_and_the_worker_goes_on_untimed(tmp_path, monkeypatch):
    loop = Loop(tmp_path)
    monkeypatch.setattr(loop.worker.timer, "finish", lambda samples: 1 / 0)
    loop.make((0, [5]))
    loop.make((1, [6]))
    assert [loop.batches.get()[0], loop.batches.get()[0]] == [0, 1]
    failed = [note["line"] for note in loop.notes() if note.get("line", {}).get("what") == "watcher_failed"]
    assert [line["detail"] for line in failed] == [{"error": "ZeroDivisionError: division by zero"}]
    assert loop.notes()[-1] == {"closed": True}


def test_a_spool_that_is_full_or_gone_stops_the_timing_not_the_worker(tmp_path):
    loop = Loop(tmp_path)
    loop.worker._writer.close()
    loop.make((0, [5]))
    loop.make((1, [6]))
    assert [loop.batches.get()[0], loop.batches.get()[0]] == [0, 1]


def test_called_outside_a_worker_it_is_the_users_function_and_nothing_else(tmp_path):
    assert make_telemetry(tmp_path, init_fn=hex)(255) == "0xff"
    assert make_telemetry(tmp_path)(255) is None
    assert list(tmp_path.iterdir()) == []


def test_it_travels_to_processes_that_start_afresh(tmp_path):
    telemetry = make_telemetry(tmp_path, init_fn=observing.seeded_init)
    assert pickle.loads(pickle.dumps(telemetry)) == telemetry


def test_where_the_spool_is_gone_the_users_function_still_runs(tmp_path):
    def _worker_loop(init_fn, worker_id, dataset, index_queue, data_queue):
        return init_fn(worker_id)

    telemetry = make_telemetry(tmp_path / "gone", init_fn=hex)
    assert _worker_loop(telemetry, 10, observing.Numbers(), _Queue(), _Queue()) == "0xa"


def test_the_users_error_shows_no_frame_of_ours(tmp_path):
    def _worker_loop(init_fn, worker_id):
        init_fn(worker_id)

    with pytest.raises(ValueError) as caught:
        _worker_loop(make_telemetry(tmp_path, init_fn=observing.bad_init), 0)
    names = [entry.name for entry in caught.traceback]
    del caught
    gc.collect()
    assert names[1:] == ["_worker_loop", "bad_init"]


def test_the_files_that_a_worker_reads_from_are_told_and_no_others(tmp_path):
    shard, log, code = tmp_path / "a.tar", tmp_path / "log.txt", tmp_path / "m.py"
    for path in (shard, log, code):
        path.write_bytes(b"x" * 100)
    (empty := tmp_path / "empty.bin").touch()
    with open(log, "ab"), open(shard, "rb"):
        found = data_files([str(code), str(empty), str(tmp_path / "gone.jpg"), str(tmp_path)])
    assert str(shard) in found
    assert not {str(log), str(code), str(empty), str(tmp_path), str(tmp_path / "gone.jpg")} & set(found)
    assert str(shard) in data_files([str(shard)])
