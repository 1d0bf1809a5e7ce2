"""`penstock.watch` around real loaders: the training gets the same batches, and the recording is complete."""

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
from penstock.watcher.dataloader import worker_files
from penstock.watcher.start import WatchedRun


@pytest.fixture
def record(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    """Check that no thread, folder, file descriptor or open watch is left after the test."""
    folder = tmp_path / "worker_files"
    folder.mkdir()
    in_folder = SimpleNamespace(mkdtemp=lambda prefix, dir: tempfile.mkdtemp(prefix=prefix, dir=dir or folder))
    monkeypatch.setattr(worker_files, "tempfile", in_folder)
    before = watcher_threads() | watcher_descriptors()
    yield
    gc.collect()
    assert active_session() is None
    assert list(folder.iterdir()) == []
    assert (watcher_threads() | watcher_descriptors()) - before == set()


def watcher_threads():
    """Return the threads of the watcher that are alive, after waiting for stack samplers that were stopped."""
    for thread in threading.enumerate():
        if thread.name == "penstock-stack-sampler":
            thread.join(10)
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock-")}


def watcher_descriptors():
    """Return the files that the watcher has open. Those of torch's queues are closed by the garbage collector."""
    if not os.path.exists("/proc/self/fd"):
        return set()
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if os.path.lexists(link)]
    return {name for name in names if ".jsonl" in name or "penstock-spool" in name}


class Sink:
    def __init__(self):
        self.lines = []

    def put(self, line):
        self.lines.append(line)

    def close(self):
        self.lines.append("closed")


class FailingSink(Sink):
    def put(self, line):
        if isinstance(line, StepLine):
            raise RuntimeError("the sink is full")
        super().put(line)


# -- what is recorded ----------------------------------------------------------------------------------------------


def test_a_watched_list_yields_its_batches_and_is_recorded(record):
    with penstock.watch([[1, 2], [3, 4], [5]], record=record, name="train", live=False) as watched:
        for _ in range(2):
            batches = []
            for batch in watched:
                with watched.phase("forward"), watched.phase("attention"):
                    batches.append(batch)
            assert batches == [[1, 2], [3, 4], [5]]
    recording = load(record)
    assert recording.notes == ()
    assert recording.run.pid == os.getpid()
    assert recording.run.machine.cores >= 1
    loader = recording.loaders[0]
    assert (loader.name, loader.batches, loader.type) == ("train", 3, "iterable")
    assert [(step.epoch, step.batch, step.samples) for step in recording.steps] == [
        (epoch, batch, samples) for epoch in range(2) for batch, samples in enumerate((2, 2, 1))
    ]
    assert [set(step.phases) for step in recording.steps] == [{"forward", "forward/attention"}] * 6
    assert [(end.epoch, end.how) for end in recording.epoch_ends] == [(0, "done"), (1, "done")]
    assert (recording.end.how, recording.end.exit_code, recording.end.dropped) == ("done", 0, 0)


def test_a_generator_is_exhausted_after_one_epoch_and_has_no_length(record):
    with penstock.watch((number for number in range(3)), record=record, live=False) as watched:
        assert list(watched) == [0, 1, 2]
        assert list(watched) == []
        with pytest.raises(TypeError):
            len(watched)
    assert [step.epoch for step in load(record).steps] == [0, 0, 0]


@pytest.mark.parametrize("batch", [None, 7, object(), "text", torch.tensor(3.0)])
def test_a_batch_that_is_no_container_is_passed_on_unchanged(record, batch):
    with penstock.watch([batch], record=record, live=False) as watched:
        assert next(iter(watched)) is batch
    (step,) = load(record).steps
    assert step.samples is None


def test_the_workers_of_a_dataloader_are_recorded(record):
    loader = DataLoader(Numbers(24), batch_size=4, num_workers=2)
    with penstock.watch(loader, record=record, live=False) as watched:
        assert [batch[0].tolist() for batch in watched] == [list(range(at, at + 4)) for at in range(0, 24, 4)]
    recording = load(record)
    assert recording.loaders[0].type == "torch"
    assert recording.loaders[0].settings["num_workers"].in_force == 2
    assert [step.worker for step in recording.steps] == [0, 1] * 3
    assert all(step.ready is None or step.ready >= 0 for step in recording.steps)
    assert sorted((fetch.batch, fetch.worker, fetch.samples) for fetch in recording.fetches) == [
        (batch, batch % 2, 4) for batch in range(6)
    ]
    assert sorted(event.worker for event in recording.events if event.what == "worker_started") == [0, 1]


def test_an_epoch_that_is_left_has_the_fetches_of_its_steps(record):
    loader = DataLoader(Shards([40, 40]), batch_size=1, num_workers=2)
    with penstock.watch(loader, record=record, live=False) as watched:
        for _ in zip(range(6), watched, strict=False):
            pass
    recording = load(record)
    assert recording.epoch_ends[0].how == "left"
    assert {step.batch for step in recording.steps} <= {fetch.batch for fetch in recording.fetches}


def test_the_hops_of_a_penstock_loader_are_recorded(record, tmp_path, make_loader):
    shards = make_shards(tmp_path / "shards", IMAGENET, samples=16, shards=1, scale=0.2)
    loader = make_loader(shards, {"label": penstock.Label(".cls")})
    with penstock.watch(loader, record=record, live=False) as watched:
        assert sum(len(batch["label"]) for batch in watched) == 16
    recording = load(record)
    assert recording.loaders[0].type == "penstock"
    assert [step.samples for step in recording.steps] == [8, 8]
    assert list(recording.hops[-1].hops) == ["read", "decode", "deliver", "step"]
    assert recording.hops[-1].bytes_read > 0


def test_an_evaluation_inside_a_step_is_a_phase_of_it(record):
    with penstock.watch([1, 2], record=record, name="train", live=False) as train:
        val = penstock.watch([3, 4, 5], name="val")
        for batch in train:
            if batch == 1:
                assert sum(val) == 12
    recording = load(record)
    assert {number: loader.name for number, loader in recording.loaders.items()} == {0: "train", 1: "val"}
    assert ["evaluation" in step.phases for step in recording.steps if step.loader == 0] == [True, False]
    assert [step.batch for step in recording.steps if step.loader == 1] == [0, 1, 2]


def test_loaders_in_a_zip_are_no_evaluation(record):
    with penstock.watch([1, 2, 3], record=record, live=False) as left:
        assert list(zip(left, penstock.watch([4, 5, 6]), strict=False)) == [(1, 4), (2, 5), (3, 6)]
    assert [(step.loader, step.phases) for step in load(record).steps] == [(0, {}), (1, {})] * 3


def test_phases_of_a_training_loop_in_another_thread_are_recorded(record):
    with penstock.watch([1, 2], record=record, live=False) as watched:

        def train():
            for _ in watched:
                with watched.phase("forward"):
                    pass

        loop = threading.Thread(target=train)
        loop.start()
        loop.join()
    assert [list(step.phases) for step in load(record).steps] == [["forward"], ["forward"]]


# -- how training loops end ----------------------------------------------------------------------------------------


def test_a_training_loop_that_is_left_ends_its_epoch(record):
    with penstock.watch(range(9), record=record, live=False) as watched:
        for number in watched:
            if number == 2:
                break
    recording = load(record)
    assert [step.batch for step in recording.steps] == [0, 1, 2]
    assert recording.epoch_ends[0].how == "left"


def test_deleting_the_iterator_ends_its_epoch(record):
    with penstock.watch(range(9), record=record, live=False) as watched:
        iterator = iter(watched)
        next(iterator)
        del iterator
        gc.collect()
    assert [end.how for end in load(record).epoch_ends] == ["left"]


def test_an_error_of_the_loader_reaches_the_training_unchanged(record):
    watched = penstock.watch(DataLoader(Bad(8), batch_size=2), record=record, live=False)
    with pytest.raises(ValueError, match=r"^sample 5 is bad$"):
        list(watched)
    watched.close()
    recording = load(record)
    assert [step.batch for step in recording.steps] == [0, 1]
    assert recording.epoch_ends[0].how == "raised"
    assert recording.end.how == "done"  # because the script went on


def test_an_object_that_is_not_iterable_raises_its_own_error(record):
    with penstock.watch(7, record=record, live=False) as watched, pytest.raises(TypeError, match="not iterable"):
        list(watched)
    assert load(record).epoch_ends[0].how == "raised"


@pytest.mark.parametrize(
    ("error", "code", "how"), [(ValueError("no"), 1, "raised"), (KeyboardInterrupt(), 130, "interrupted")]
)
def test_an_error_that_leaves_the_with_statement_is_recorded_as_the_end(record, error, code, how):
    def train():
        with penstock.watch([1], record=record, live=False):
            raise error

    with pytest.raises(type(error)):
        train()
    assert (load(record).end.exit_code, load(record).end.how) == (code, how)


def test_closing_twice_writes_one_end_line(record):
    watched = penstock.watch([1], record=record, live=False)
    watched.close()
    watched.close()
    assert record.read_text().count('"kind":"end"') == 1


def test_a_closed_watch_yields_batches_and_records_nothing(record):
    watched = penstock.watch([1, 2], record=record, live=False)
    watched.close()
    assert list(watched) == [1, 2]
    with watched.phase("forward"):
        pass
    assert load(record).steps == ()


# -- in place of the loader ----------------------------------------------------------------------------------------


class ListWithEpoch(list):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_other_attributes_are_those_of_the_loader(record):
    loader = ListWithEpoch([1, 2])
    with penstock.watch(loader, record=record, live=False) as watched:
        watched.set_epoch(3)
        assert (loader.epoch, watched.epoch, len(watched)) == (3, 3, 2)
        with pytest.raises(AttributeError):
            _ = watched.missing_attribute
        assert not hasattr(watched, "__array__")


def test_pickling_and_copying_give_the_loader_itself(record):
    with penstock.watch([1, 2], record=record, live=False) as watched:
        for other in (pickle.loads(pickle.dumps(watched)), copy.deepcopy(watched)):
            assert other == [1, 2]


# -- several watches -----------------------------------------------------------------------------------------------


def test_loaders_watched_together_are_recorded_together(record):
    first = penstock.watch([1], record=record, name="train", live=False)
    second = penstock.watch([2], name="val")
    third = penstock.watch([3], record=str(record))
    second.close()  # which did not begin the recording
    assert (list(first), list(second), list(third)) == ([1], [2], [3])
    first.close()
    assert [step.loader for step in load(record).steps] == [0, 1, 2]


def test_a_second_recording_is_refused_with_advice(record, tmp_path):
    with penstock.watch([1], record=record, live=False) as watched:
        with pytest.raises(SettingError, match=r"record cannot be set now.*Close the other watch first") as refused:
            penstock.watch([2], record=tmp_path / "other.jsonl")
        assert str(record) in str(refused.value)
        assert list(watched) == [1]
    assert not (tmp_path / "other.jsonl").exists()
    with penstock.watch([2], record=tmp_path / "other.jsonl", live=False) as other:
        assert list(other) == [2]


def test_options_that_a_joined_watch_cannot_have_are_refused(record):
    sink = Sink()
    with penstock.watch([1], record=record, live=False, sinks=[sink]):
        penstock.watch([2], sinks=[sink], live=False)
        with pytest.raises(SettingError, match="slow_s, window, sinks cannot be set now"):
            penstock.watch([3], sinks=[Sink()], slow_s=1.0, window=5)


def test_a_script_that_penstock_run_watches_gets_a_warning_for_its_own_record(record, tmp_path, caplog):
    run = WatchedRun(record)
    publish_session(run)  # as `penstock run` does
    try:
        watched = penstock.watch([1], record=tmp_path / "own.jsonl")
        assert list(watched) == [1]
        watched.close()
        assert not run.closed
    finally:
        run.close()
    (warning,) = (entry.getMessage() for entry in caplog.records)
    assert warning == f"this process is being watched already, recorded to {record}: record cannot be set now"
    assert len(load(record).steps) == 1


def test_a_recording_that_cannot_be_written_raises_before_the_training(tmp_path):
    with pytest.raises(RecordingError, match="cannot record to"):
        penstock.watch([1], record=tmp_path / "missing" / "run.jsonl", live=False)


# -- no sinks, and errors ------------------------------------------------------------------------------------------


def test_without_sinks_the_loader_is_iterated_over_directly(record, monkeypatch):
    loader = [1, 2]
    watched = penstock.watch(loader, live=False)
    assert type(iter(watched)) is type(iter(loader))
    with penstock.watch(loader, record=record, live=False) as other:  # the first watch does not keep it from recording
        assert list(other) == [1, 2]
    watched.close()
    assert len(load(record).steps) == 2


def test_a_sink_that_raises_ends_the_watching_but_not_the_training(record, caplog):
    sink = FailingSink()
    with penstock.watch(range(4), record=record, live=False, sinks=[sink]) as watched:
        assert list(watched) == [0, 1, 2, 3]
        assert list(watched) == [0, 1, 2, 3]
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING] == [
        "watching stopped: RuntimeError: the sink is full"
    ]
    recording = load(record)
    assert [event.detail["error"] for event in recording.events if event.what == "watcher_failed"] == [
        "RuntimeError: the sink is full"
    ]
    assert (len(recording.steps), recording.end.how) == (4, "done")
    assert sink.lines[-1] == "closed"


def test_workers_are_not_timed_if_the_temporary_folder_is_full(record, monkeypatch):
    def raise_full(**_):
        raise OSError("no space left")

    monkeypatch.setattr(worker_files, "tempfile", SimpleNamespace(mkdtemp=raise_full))
    loader = DataLoader(Numbers(8), batch_size=4, num_workers=1)
    with penstock.watch(loader, record=record, live=False) as watched:
        assert [batch[0].tolist() for batch in watched] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    recording = load(record)
    assert len(recording.steps) == 2
    assert recording.fetches == ()
    assert [event.what for event in recording.events] == ["watcher_failed"]


def test_a_sink_gets_every_line_and_is_closed(record):
    sink = Sink()
    with penstock.watch([1, 2], live=False, sinks=[sink]) as watched:
        assert list(watched) == [1, 2]
    kinds = [line if isinstance(line, str) else type(line).__name__ for line in sink.lines]
    assert [kind for kind in kinds if kind not in ("SystemLine", "StackSamplesLine")] == [
        "LoaderLine", "EpochStartLine", "StepLine", "StepLine", "EpochEndLine", "EndLine", "closed",
    ]  # fmt: skip
    assert not any(isinstance(line, EventLine) for line in sink.lines)
