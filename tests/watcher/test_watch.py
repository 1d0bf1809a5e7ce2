"""penstock.watch around real loaders: the training sees no difference, the recording sees it all."""

import copy
import gc
import logging
import os
import pickle
import tempfile
import threading
from types import SimpleNamespace

import pytest
import torch
from tests.support.watcher_helpers import Bad, Numbers, Shards
from torch.utils.data import DataLoader

import penstock
from penstock.errors import RecordingError, SettingError
from penstock.recording.format import EventLine, StepLine
from penstock.recording.reader import load
from penstock.testing import IMAGENET, make_shards
from penstock.watcher.active_session import active_session, publish_session
from penstock.watcher.dataloader import worker_files as spool
from penstock.watcher.start import WatchedRun


@pytest.fixture
def record(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    """Neither a thread, nor a folder, nor a file descriptor, nor an open watch."""
    folder = tmp_path / "spools"
    folder.mkdir()
    own = SimpleNamespace(mkdtemp=lambda prefix, dir: tempfile.mkdtemp(prefix=prefix, dir=dir or folder))
    monkeypatch.setattr(spool, "tempfile", own)
    before = threads() | descriptors()
    yield
    gc.collect()
    assert active_session() is None
    assert list(folder.iterdir()) == []
    assert (threads() | descriptors()) - before == set()


def threads():
    """The sampler's ends at its next look."""
    for thread in threading.enumerate():
        if thread.name == "penstock-whereabouts":
            thread.join(10)
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock-")}


def descriptors():
    """Of ours; torch's own queues are closed when they are collected."""
    if not os.path.exists("/proc/self/fd"):
        return set()
    found = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(fd) for fd in found if os.path.lexists(fd)]
    return {name for name in names if ".jsonl" in name or "penstock-spool" in name}


class Sink:
    def __init__(self):
        self.lines = []

    def put(self, line):
        self.lines.append(line)

    def close(self):
        self.lines.append("closed")


class Failing(Sink):
    def put(self, line):
        if isinstance(line, StepLine):
            raise RuntimeError("the sink is full")
        super().put(line)


# -- what is recorded ----------------------------------------------------------------------------------------------


def test_a_watched_list_gives_its_batches_and_a_recording_of_them(record):
    with penstock.watch([[1, 2], [3, 4], [5]], record=record, name="train", live=False) as watched:
        for _ in range(2):
            got = []
            for batch in watched:
                with watched.phase("forward"), watched.phase("attention"):
                    got.append(batch)
            assert got == [[1, 2], [3, 4], [5]]
    found = load(record)
    assert found.notes == ()
    assert found.run.pid == os.getpid()
    assert found.run.machine.cores >= 1
    assert (found.loaders[0].name, found.loaders[0].batches, found.loaders[0].type) == ("train", 3, "iterable")
    assert [(step.epoch, step.batch, step.samples) for step in found.steps] == [
        (number, batch, samples) for number in range(2) for batch, samples in enumerate((2, 2, 1))
    ]
    assert [set(step.phases) for step in found.steps] == [{"forward", "forward/attention"}] * 6
    assert [(end.epoch, end.how) for end in found.epoch_ends] == [(0, "done"), (1, "done")]
    assert (found.end.how, found.end.exit_code, found.end.dropped) == ("done", 0, 0)


def test_a_generator_is_watched_once_and_has_no_length(record):
    with penstock.watch((number for number in range(3)), record=record, live=False) as watched:
        assert list(watched) == [0, 1, 2]
        assert list(watched) == []
        with pytest.raises(TypeError):
            len(watched)
    assert [len([s for s in load(record).steps if s.epoch == number]) for number in range(2)] == [3, 0]


@pytest.mark.parametrize("batch", [None, 7, object(), "text", torch.tensor(3.0)])
def test_a_batch_that_is_no_container_passes_as_it_is(record, batch):
    with penstock.watch([batch], record=record, live=False) as watched:
        assert next(iter(watched)) is batch
    (step,) = load(record).steps
    assert step.samples is None


def test_a_dataloaders_workers_are_seen(record):
    loader = DataLoader(Numbers(24), batch_size=4, num_workers=2)
    with penstock.watch(loader, record=record, live=False) as watched:
        assert [batch[0].tolist() for batch in watched] == [list(range(at, at + 4)) for at in range(0, 24, 4)]
    found = load(record)
    assert found.loaders[0].type == "torch"
    assert found.loaders[0].settings["num_workers"].in_force == 2
    assert [step.worker for step in found.steps] == [0, 1] * 3
    assert all(step.ready is None or step.ready >= 0 for step in found.steps)
    assert sorted((fetch.batch, fetch.worker, fetch.samples) for fetch in found.fetches) == [
        (batch, batch % 2, 4) for batch in range(6)
    ]
    assert sorted(event.worker for event in found.events if event.what == "worker_started") == [0, 1]


def test_a_pass_that_is_left_has_the_fetches_of_its_steps(record):
    loader = DataLoader(Shards([40, 40]), batch_size=1, num_workers=2)
    with penstock.watch(loader, record=record, live=False) as watched:
        for _ in zip(range(6), watched, strict=False):
            pass
    found = load(record)
    assert found.epoch_ends[0].how == "left"
    assert {step.batch for step in found.steps} <= {fetch.batch for fetch in found.fetches}


def test_a_penstock_loaders_hops_are_seen(record, tmp_path, make_loader):
    shards = make_shards(tmp_path / "shards", IMAGENET, samples=16, shards=1, scale=0.2)
    loader = make_loader(shards, {"label": penstock.Label(".cls")})
    with penstock.watch(loader, record=record, live=False) as watched:
        assert sum(len(batch["label"]) for batch in watched) == 16
    found = load(record)
    assert found.loaders[0].type == "penstock"
    assert [step.samples for step in found.steps] == [8, 8]
    assert list(found.hops[-1].hops) == ["read", "decode", "deliver", "step"]
    assert found.hops[-1].bytes_read > 0


def test_an_evaluation_inside_a_step_is_told_from_the_step(record):
    with penstock.watch([1, 2], record=record, name="train", live=False) as train:
        val = penstock.watch([3, 4, 5], name="val")
        for batch in train:
            if batch == 1:
                assert sum(val) == 12
    found = load(record)
    assert {number: loader.name for number, loader in found.loaders.items()} == {0: "train", 1: "val"}
    assert ["evaluation" in step.phases for step in found.steps if step.loader == 0] == [True, False]
    assert [step.batch for step in found.steps if step.loader == 1] == [0, 1, 2]


def test_loaders_in_a_zip_are_no_evaluation(record):
    with penstock.watch([1, 2, 3], record=record, live=False) as left:
        assert list(zip(left, penstock.watch([4, 5, 6]), strict=False)) == [(1, 4), (2, 5), (3, 6)]
    assert [(step.loader, step.phases) for step in load(record).steps] == [(0, {}), (1, {})] * 3


def test_a_loop_in_another_thread_has_its_phases(record):
    with penstock.watch([1, 2], record=record, live=False) as watched:

        def train():
            for _ in watched:
                with watched.phase("forward"):
                    pass

        loop = threading.Thread(target=train)
        loop.start()
        loop.join()
    assert [list(step.phases) for step in load(record).steps] == [["forward"], ["forward"]]


# -- how loops end -------------------------------------------------------------------------------------------------


def test_a_loop_that_is_left_ends_its_pass(record):
    with penstock.watch(range(9), record=record, live=False) as watched:
        for number in watched:
            if number == 2:
                break
    found = load(record)
    assert [step.batch for step in found.steps] == [0, 1, 2]
    assert found.epoch_ends[0].how == "left"


def test_an_iterator_that_nobody_holds_any_more_ends_its_pass(record):
    with penstock.watch(range(9), record=record, live=False) as watched:
        iterator = iter(watched)
        next(iterator)
        del iterator
        gc.collect()
    assert [end.how for end in load(record).epoch_ends] == ["left"]


def test_an_error_of_the_loader_is_the_trainings_unchanged(record):
    watched = penstock.watch(DataLoader(Bad(8), batch_size=2), record=record, live=False)
    with pytest.raises(ValueError, match=r"^sample 5 is bad$"):
        list(watched)
    watched.close()
    found = load(record)
    assert [step.batch for step in found.steps] == [0, 1]
    assert found.epoch_ends[0].how == "raised"
    assert found.end.how == "done"  # the script has gone on


def test_a_loader_that_cannot_be_iterated_over_says_so_itself(record):
    with penstock.watch(7, record=record, live=False) as watched, pytest.raises(TypeError, match="not iterable"):
        list(watched)
    assert load(record).epoch_ends[0].how == "raised"


@pytest.mark.parametrize(
    ("error", "code", "how"), [(ValueError("no"), 1, "raised"), (KeyboardInterrupt(), 130, "interrupted")]
)
def test_an_error_that_leaves_the_with_is_in_the_end(record, error, code, how):
    def train():
        with penstock.watch([1], record=record, live=False):
            raise error

    with pytest.raises(type(error)):
        train()
    assert (load(record).end.exit_code, load(record).end.how) == (code, how)


def test_closing_twice_writes_one_end(record):
    watched = penstock.watch([1], record=record, live=False)
    watched.close()
    watched.close()
    assert record.read_text().count('"kind":"end"') == 1


def test_a_closed_watch_is_the_loader(record):
    watched = penstock.watch([1, 2], record=record, live=False)
    watched.close()
    assert list(watched) == [1, 2]
    with watched.phase("forward"):
        pass
    assert load(record).steps == ()


# -- standing where the loader stood -------------------------------------------------------------------------------


class WithEpoch(list):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_what_is_not_ours_is_the_loaders(record):
    loader = WithEpoch([1, 2])
    with penstock.watch(loader, record=record, live=False) as watched:
        watched.set_epoch(3)
        assert (loader.epoch, watched.epoch, len(watched)) == (3, 3, 2)
        with pytest.raises(AttributeError):
            _ = watched.nothing_of_that_name
        assert not hasattr(watched, "__array__")


def test_another_process_gets_the_loader_itself(record):
    with penstock.watch([1, 2], record=record, live=False) as watched:
        for other in (pickle.loads(pickle.dumps(watched)), copy.deepcopy(watched)):
            assert other == [1, 2]


# -- several watches -----------------------------------------------------------------------------------------------


def test_loaders_watched_together_are_recorded_together(record):
    first = penstock.watch([1], record=record, name="train", live=False)
    second = penstock.watch([2], name="val")
    again = penstock.watch([3], record=str(record))
    second.close()  # it did not begin the recording
    assert (list(first), list(second), list(again)) == ([1], [2], [3])
    first.close()
    assert [step.loader for step in load(record).steps] == [0, 1, 2]


def test_a_second_record_is_refused_with_advice(record, tmp_path):
    with penstock.watch([1], record=record, live=False) as watched:
        with pytest.raises(SettingError, match=r"record cannot be set now.*Close the other watch first") as refused:
            penstock.watch([2], record=tmp_path / "other.jsonl")
        assert str(record) in str(refused.value)
        assert list(watched) == [1]
    assert not (tmp_path / "other.jsonl").exists()
    with penstock.watch([2], record=tmp_path / "other.jsonl", live=False) as other:
        assert list(other) == [2]


def test_what_a_joined_watch_cannot_have_is_refused_not_forgotten(record):
    sink = Sink()
    with penstock.watch([1], record=record, live=False, sinks=[sink]):
        penstock.watch([2], sinks=[sink], live=False)
        with pytest.raises(SettingError, match="slow_s, window, sinks cannot be set now"):
            penstock.watch([3], sinks=[Sink()], slow_s=1.0, window=5)


def test_under_penstock_run_a_scripts_own_record_is_a_warning(record, tmp_path, caplog):
    watching = WatchedRun(record)
    publish_session(watching)  # as `penstock run` does
    try:
        watched = penstock.watch([1], record=tmp_path / "own.jsonl")
        assert list(watched) == [1]
        watched.close()
        assert not watching.closed
    finally:
        watching.close()
    (warning,) = (entry.getMessage() for entry in caplog.records)
    assert warning == f"this process is being watched already, recorded to {record}: record cannot be set now"
    assert len(load(record).steps) == 1


def test_a_record_that_cannot_be_written_is_said_before_the_training(tmp_path):
    with pytest.raises(RecordingError, match="cannot record to"):
        penstock.watch([1], record=tmp_path / "nowhere" / "run.jsonl", live=False)


# -- off, and failing ----------------------------------------------------------------------------------------------


def test_with_nobody_to_tell_the_loop_is_the_loaders_own(record, monkeypatch):
    loader = [1, 2]
    watched = penstock.watch(loader, live=False)
    assert type(iter(watched)) is type(iter(loader))
    with penstock.watch(loader, record=record, live=False) as other:  # and it is in nobody's way
        assert list(other) == [1, 2]
    watched.close()
    assert len(load(record).steps) == 2


def test_a_sink_that_fails_ends_the_watching_not_the_training(record, caplog):
    sink = Failing()
    with penstock.watch(range(4), record=record, live=False, sinks=[sink]) as watched:
        assert list(watched) == [0, 1, 2, 3]
        assert list(watched) == [0, 1, 2, 3]
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING] == [
        "watching stopped: RuntimeError: the sink is full"
    ]
    found = load(record)
    assert [event.detail["error"] for event in found.events if event.what == "watcher_failed"] == [
        "RuntimeError: the sink is full"
    ]
    assert (len(found.steps), found.end.how) == (4, "done")
    assert sink.lines[-1] == "closed"


def test_a_full_temporary_folder_leaves_the_workers_untimed(record, monkeypatch):
    def full(**_):
        raise OSError("no space left")

    monkeypatch.setattr(spool, "tempfile", SimpleNamespace(mkdtemp=full))
    loader = DataLoader(Numbers(8), batch_size=4, num_workers=1)
    with penstock.watch(loader, record=record, live=False) as watched:
        assert [batch[0].tolist() for batch in watched] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    found = load(record)
    assert len(found.steps) == 2
    assert found.fetches == ()
    assert [event.what for event in found.events] == ["watcher_failed"]


def test_sinks_get_every_line_and_an_end(record):
    sink = Sink()
    with penstock.watch([1, 2], live=False, sinks=[sink]) as watched:
        assert list(watched) == [1, 2]
    kinds = [line if isinstance(line, str) else type(line).__name__ for line in sink.lines]
    assert [kind for kind in kinds if kind not in ("SystemLine", "StackSamplesLine")] == [
        "LoaderLine", "EpochStartLine", "StepLine", "StepLine", "EpochEndLine", "EndLine", "closed",
    ]  # fmt: skip
    assert not any(isinstance(line, EventLine) for line in sink.lines)
