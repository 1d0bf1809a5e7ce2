"""From the notes of workers to lines of the recording."""

import json
import os

import pytest

from penstock.recording.format import EventLine, FetchLine, StackSamplesLine
from penstock.watcher.dataloader.worker_files import MAX_UNNUMBERED, WorkerFiles
from penstock.watcher.dataloader.worker_process import FILE_BYTES, WorkerWriter


@pytest.fixture
def spool():
    spool = WorkerFiles()
    yield spool
    spool.close()


def note(batch=0, *, worker=0, number=0, **more):
    line = {"kind": "fetch", "loader": 1, "pass": number, "batch": batch, "worker": worker, "at_s": 2.5, "fetch_s": 0.5}
    return {"loader": 1, "pass": number, "line": line, **more}


def fetch(batch, *, worker=0, number=0):
    return FetchLine(loader=1, epoch=number, batch=batch, worker=worker, at_s=2.5, fetch_s=0.5)


def nothing(task, number=0):
    return {"loader": 1, "pass": number, "task": task}


def test_lines_of_all_workers_come_once(spool):
    first, second = WorkerWriter(str(spool.folder), "0"), WorkerWriter(str(spool.folder), "1")
    first.write(note(0))
    second.write(note(1, worker=1))
    assert spool.drain() == [fetch(0), fetch(1, worker=1)]
    assert spool.drain() == []
    first.write(note(2))
    assert spool.drain() == [fetch(2)]


def test_every_kind_of_line_comes_through(spool):
    pen = WorkerWriter(str(spool.folder), "0")
    pen.write({"line": {"kind": "where", "loader": 1, "worker": 0, "at_s": 1.0, "looks": 2, "states": {"read": 2}}})
    pen.write({"line": {"kind": "event", "what": "worker_started", "at_s": 1.0, "worker": 0}})
    assert spool.drain() == [
        StackSamplesLine(loader=1, worker=0, at_s=1.0, samples=2, states={"read": 2}),
        EventLine(what="worker_started", at_s=1.0, worker=0),
    ]


def test_half_a_line_waits_for_its_other_half(spool):
    text = json.dumps(note(0)).encode() + b"\n"
    path = spool.folder / "0.jsonl"
    path.write_bytes(text + text[:30])
    assert spool.drain() == [fetch(0)]
    with path.open("ab") as file:
        file.write(text[30:])
    assert spool.drain() == [fetch(0)]


def test_what_cannot_be_read_is_said_once_and_the_rest_still_comes(spool):
    text = json.dumps(note(0)).encode()
    (spool.folder / "0.jsonl").write_bytes(b"\xff{\n[1]\n" + text + b"\n")
    complaint, line = spool.drain()
    assert complaint.what == "watcher_failed"
    assert line == fetch(0)


def test_a_file_that_is_closed_is_removed(spool):
    pen = WorkerWriter(str(spool.folder), "0")
    pen.write(note(0))
    pen.close()
    assert spool.drain() == [fetch(0)]
    assert list(spool.folder.iterdir()) == []


def test_a_long_run_does_not_fill_the_disk(spool):
    pen = WorkerWriter(str(spool.folder), "0")
    big = {"line": {"kind": "event", "what": "x" * (FILE_BYTES // 2), "at_s": 0.0}}
    for _ in range(5):
        pen.write(big)
    assert len(list(spool.folder.iterdir())) == 3
    assert len(spool.drain()) == 5
    assert len(list(spool.folder.iterdir())) == 1


def test_nothing_can_be_written_after_the_end(spool):
    pen = WorkerWriter(str(spool.folder), "0")
    pen.close()
    with pytest.raises(OSError):
        pen.write(note(0))


def test_tasks_that_came_to_nothing_are_not_counted(spool):
    pen = WorkerWriter(str(spool.folder), "0")
    for each in (note(-1, task=0), nothing(1), note(-1, task=2)):
        pen.write(each)
    assert [line.batch for line in spool.drain()] == [0, 1]


def test_a_batch_gets_its_number_when_the_fate_of_all_earlier_tasks_is_known(spool):
    pen = WorkerWriter(str(spool.folder), "0")
    pen.write(note(-1, task=2))
    pen.write(note(-1, task=0))
    assert [line.batch for line in spool.drain()] == [0]
    pen.write(nothing(1))
    assert [line.batch for line in spool.drain()] == [1]


def test_at_the_end_batches_without_a_number_come_as_they_are(spool):
    WorkerWriter(str(spool.folder), "0").write(note(-1, task=2))
    assert spool.drain() == []
    assert spool.drain(last=True) == [fetch(-1)]
    assert spool.drain(last=True) == []


def test_a_task_that_is_never_heard_of_does_not_hold_the_rest_for_ever(spool):
    pen = WorkerWriter(str(spool.folder), "0")
    for task in range(1, MAX_UNNUMBERED + 2):
        pen.write(note(-1, task=task))
    assert {line.batch for line in spool.drain()} == {-1}


def test_workers_that_outlive_a_pass_are_told_apart_by_when_it_began_for_them(spool):
    for number, at_s in ((0, 1.0), (1, 5.0), (2, 9.0)):
        spool.epoch_started(1, number, at_s)
    pen = WorkerWriter(str(spool.folder), "0")
    for since_s in (5.5, 9.5, 0.5):
        pen.write(note(0, since_s=since_s))
    assert [line.epoch for line in spool.drain()] == [1, 2, 0]


def test_lines_of_this_process_come_without_a_folder():
    spool = WorkerFiles()
    spool.put(fetch(0))
    assert spool.drain() == [fetch(0)]
    assert spool._folder is None


def test_the_folder_is_removed_with_whatever_is_in_it(spool):
    WorkerWriter(str(spool.folder), "0").write(note(0))
    spool.close()
    assert not spool.folder.exists()
    assert spool.drain() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_folder_to_its_parent(spool):
    folder = spool.folder
    pid = os.fork()
    if pid == 0:
        spool.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert folder.exists()
