import json
import os

import pytest

from penstock.recording.format import EventLine, FetchLine, StackSamplesLine
from penstock.watcher.dataloader.worker_files import MAX_UNNUMBERED, WorkerFiles
from penstock.watcher.dataloader.worker_process import FILE_BYTES, WorkerWriter


@pytest.fixture
def worker_files():
    worker_files = WorkerFiles()
    yield worker_files
    worker_files.close()


@pytest.fixture
def writer(worker_files):
    return WorkerWriter(str(worker_files.folder), "0")


def fetch_message(batch=0, *, worker=0, epoch=0, **more):
    line = {"kind": "fetch", "loader": 1, "pass": epoch, "batch": batch, "worker": worker, "at_s": 2.5, "fetch_s": 0.5}
    return {"loader": 1, "pass": epoch, "line": line, **more}


def task_without_batch(task, epoch=0):
    return {"loader": 1, "pass": epoch, "task": task}


def fetch_line(batch, *, worker=0, epoch=0):
    """Return the line that `fetch_message` becomes."""
    return FetchLine(loader=1, epoch=epoch, batch=batch, worker=worker, at_s=2.5, fetch_s=0.5)


def test_drain_returns_the_new_lines_of_all_workers_once(worker_files, writer):
    second_writer = WorkerWriter(str(worker_files.folder), "1")
    writer.write(fetch_message(0))
    second_writer.write(fetch_message(1, worker=1))
    assert worker_files.drain() == [fetch_line(0), fetch_line(1, worker=1)]
    assert worker_files.drain() == []
    writer.write(fetch_message(2))
    assert worker_files.drain() == [fetch_line(2)]


def test_stack_samples_and_events_are_returned_too(worker_files, writer):
    counts = {"looks": 2, "states": {"read": 2}}  # glossary: allow
    writer.write({"line": {"kind": "where", "loader": 1, "worker": 0, "at_s": 1.0, **counts}})
    writer.write({"line": {"kind": "event", "what": "worker_started", "at_s": 1.0, "worker": 0}})
    assert worker_files.drain() == [
        StackSamplesLine(loader=1, worker=0, at_s=1.0, samples=2, states={"read": 2}),
        EventLine(what="worker_started", at_s=1.0, worker=0),
    ]


def test_an_incomplete_line_is_read_when_its_rest_is_written(worker_files):
    text = json.dumps(fetch_message(0)).encode() + b"\n"
    path = worker_files.folder / "0.jsonl"
    path.write_bytes(text + text[:30])
    assert worker_files.drain() == [fetch_line(0)]
    with path.open("ab") as file:
        file.write(text[30:])
    assert worker_files.drain() == [fetch_line(0)]


def test_unreadable_lines_are_reported_once_and_later_lines_are_read(worker_files):
    text = json.dumps(fetch_message(0)).encode()
    (worker_files.folder / "0.jsonl").write_bytes(b"\xff{\n[1]\n" + text + b"\n")
    report, line = worker_files.drain()
    assert report.what == "watcher_failed"
    assert line == fetch_line(0)


def test_a_file_that_its_worker_has_closed_is_removed(worker_files, writer):
    writer.write(fetch_message(0))
    writer.close()
    assert worker_files.drain() == [fetch_line(0)]
    assert list(worker_files.folder.iterdir()) == []


def test_a_long_run_uses_several_files_and_those_that_were_read_are_removed(worker_files, writer):
    large_message = {"line": {"kind": "event", "what": "x" * (FILE_BYTES // 2), "at_s": 0.0}}
    for _ in range(5):
        writer.write(large_message)
    assert len(list(worker_files.folder.iterdir())) == 3
    assert len(worker_files.drain()) == 5
    assert len(list(worker_files.folder.iterdir())) == 1


def test_writing_after_close_raises(writer):
    writer.close()
    with pytest.raises(OSError):
        writer.write(fetch_message(0))


def test_tasks_that_give_no_batch_are_left_out_of_the_numbering(worker_files, writer):
    for message in (fetch_message(-1, task=0), task_without_batch(1), fetch_message(-1, task=2)):
        writer.write(message)
    assert [line.batch for line in worker_files.drain()] == [0, 1]


def test_a_batch_gets_its_index_when_the_results_of_all_earlier_tasks_are_known(worker_files, writer):
    writer.write(fetch_message(-1, task=2))
    writer.write(fetch_message(-1, task=0))
    assert [line.batch for line in worker_files.drain()] == [0]
    writer.write(task_without_batch(1))
    assert [line.batch for line in worker_files.drain()] == [1]


def test_the_last_drain_returns_batches_without_an_index(worker_files, writer):
    writer.write(fetch_message(-1, task=2))
    assert worker_files.drain() == []
    assert worker_files.drain(last=True) == [fetch_line(-1)]
    assert worker_files.drain(last=True) == []


def test_batches_are_returned_without_an_index_if_too_many_wait_for_one_task(worker_files, writer):
    for task in range(1, MAX_UNNUMBERED + 2):
        writer.write(fetch_message(-1, task=task))
    lines = worker_files.drain()
    assert len(lines) == MAX_UNNUMBERED + 1
    assert {line.batch for line in lines} == {-1}


def test_the_epoch_of_a_persistent_worker_follows_from_when_it_began(worker_files, writer):
    for epoch, started_s in ((0, 1.0), (1, 5.0), (2, 9.0)):
        worker_files.epoch_started(1, epoch, started_s)
    for since_s in (5.5, 9.5, 0.5):
        writer.write(fetch_message(0, since_s=since_s))
    assert [line.epoch for line in worker_files.drain()] == [1, 2, 0]


def test_lines_of_the_main_process_need_no_folder():
    worker_files = WorkerFiles()
    worker_files.put(fetch_line(0))
    assert worker_files.drain() == [fetch_line(0)]
    assert worker_files._folder is None


def test_close_removes_the_folder_with_unread_files(worker_files, writer):
    writer.write(fetch_message(0))
    worker_files.close()
    assert not worker_files.folder.exists()
    assert worker_files.drain() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_remove_the_folder_of_its_parent(worker_files):
    folder = worker_files.folder
    pid = os.fork()
    if pid == 0:
        worker_files.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert folder.exists()
