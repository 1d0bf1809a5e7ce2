"""A plan's settings in the place of a script's: what is replaced, what stays, what is told."""

import multiprocessing
import signal
import sys
import textwrap
import types

import pytest
import torch
from tests.support import watcher_helpers as observing
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, get_worker_info

from penstock.recording.format import LoaderSetting
from penstock.recording.reader import load
from penstock.watcher.dataloader import main_process as torchloader
from penstock.watcher.script import apply_plan as applied
from penstock.watcher.script import child_process as child
from penstock.watcher.script.apply_plan import LimitThreads, apply_plan, limit_threads, replaced_settings
from penstock.watcher.script.runner import Script, TrialOptions, run_script

PLAN = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}


@pytest.fixture(autouse=True)
def nothing_told_yet(monkeypatch):
    monkeypatch.setattr(applied, "_logged", set())


@pytest.fixture
def planned():
    """A class of loaders to which a plan is applied; torch's own stays as it is."""

    def make(plan):
        kind = type("Planned", (DataLoader,), {})
        apply_plan(plan, kind)
        return kind

    return make


class Dealt(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(range(8)[info.id :: info.num_workers] if info else range(8))


class Undealt(IterableDataset):
    def __iter__(self):
        return iter(range(8))


# -- what is replaced ----------------------------------------------------------------------------------------------


def test_the_plans_settings_replace_the_scripts_and_nothing_else(planned):
    loader = planned(PLAN)(observing.Numbers(8), 4, drop_last=True, num_workers=1, timeout=7)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 4, True)
    assert (loader.batch_size, loader.drop_last, loader.timeout, loader.in_order) == (4, True, 7, True)
    assert replaced_settings(loader) == {
        "num_workers": (1, 2),
        "prefetch_factor": (2, 4),  # torch's default, which the script had not given
        "persistent_workers": (False, True),
    }


def test_settings_given_by_position_are_replaced_too(planned):
    loader = planned({"num_workers": 2, "pin_memory": False})(observing.Numbers(8), 4, None, None, None, 1, None, True)
    assert (loader.batch_size, loader.num_workers, loader.pin_memory) == (4, 2, False)


def test_a_setting_that_is_the_plans_already_is_not_called_replaced(planned, caplog):
    loader = planned({"num_workers": 1, "multiprocessing_context": "fork"})(
        observing.Numbers(8), num_workers=1, multiprocessing_context=multiprocessing.get_context("fork")
    )
    assert replaced_settings(loader) == {}
    assert caplog.messages == []


def test_the_recording_has_the_scripts_settings_as_requested_and_the_plans_as_in_force(planned):
    loader = planned({**PLAN, "worker_threads": 1})(observing.Numbers(8), num_workers=1)
    settings = torchloader.describe(loader, 0, requested={"num_workers": 32}).settings
    assert settings["num_workers"] == LoaderSetting(requested=1, in_force=2)
    assert settings["prefetch_factor"] == LoaderSetting(requested=2, in_force=4)
    assert settings["worker_threads"] == LoaderSetting(in_force=1)
    assert settings["batch_size"] == LoaderSetting(in_force=1)


def test_one_line_tells_what_was_replaced_however_often_the_loader_is_made(planned, caplog):
    kind = planned({"num_workers": 2})
    for _ in range(3):
        kind(observing.Numbers(8), num_workers=1)
    assert caplog.messages == ["the plan changes a DataLoader: num_workers 1 → 2"]


def test_without_workers_in_the_plan_what_needs_them_goes(planned):
    own = {"prefetch_factor": 3, "persistent_workers": True, "multiprocessing_context": "fork", "timeout": 5}
    kind = planned({"num_workers": 0, "prefetch_factor": 4, "persistent_workers": True, "worker_threads": 1})
    loader = kind(observing.Numbers(8), 4, num_workers=2, **own)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)
    assert (loader.multiprocessing_context, loader.timeout, loader.worker_init_fn) == (None, 0, None)
    assert [at.tolist() for at, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_without_workers_in_the_script_a_plan_that_adds_none_leaves_it_without(planned):
    loader = planned({"prefetch_factor": 4, "in_order": False, "worker_threads": 1})(observing.Numbers(8))
    assert (loader.num_workers, loader.prefetch_factor, loader.in_order) == (0, None, False)
    assert list(replaced_settings(loader)) == ["in_order"]


def test_batch_samplers_and_samplers_stay(planned):
    sampler = BatchSampler(SequentialSampler(range(8)), 4, False)
    loader = planned({"num_workers": 2})(observing.Numbers(8), batch_sampler=sampler)
    assert loader.batch_sampler is sampler
    assert [at.tolist() for at, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_subclass_with_arguments_of_its_own_is_reached(planned):
    class Own(planned(PLAN)):
        def __init__(self, size):
            super().__init__(observing.Numbers(size), num_workers=1)

    assert Own(8).num_workers == 2


def test_the_signature_is_the_one_that_frameworks_look_at(planned):
    import inspect

    assert inspect.signature(planned(PLAN).__init__) == inspect.signature(DataLoader.__init__)


# -- what stays the script's ---------------------------------------------------------------------------------------


def test_an_iterable_dataset_that_deals_its_samples_gets_the_plans_workers(planned):
    loader = planned({"num_workers": 2})(Dealt(), batch_size=4)
    assert loader.num_workers == 2
    assert sorted(int(x) for batch in loader for x in batch) == list(range(8))


def test_an_iterable_dataset_that_does_not_keeps_its_one_worker_and_the_rest_is_applied(planned, caplog):
    loader = planned({"num_workers": 2, "prefetch_factor": 4})(Undealt(), num_workers=1)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 4)
    assert "num_workers stays 1" in caplog.text


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_an_iterable_dataset_with_workers_of_the_scripts_choice_is_taken_to_deal(planned):
    assert planned({"num_workers": 1})(Undealt(), num_workers=2).num_workers == 1
    assert planned({"num_workers": 3})(Undealt(), num_workers=2).num_workers == 3


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"num_workers": 2, "multiprocessing_context": "teleport"}, "teleport"),
        ({"num_workers": -1}, "non-negative"),
        ({"num_workers": "many"}, "TypeError"),
        (
            {"num_workers": 4096},
            "This DataLoader will create",
        ),  # a warning that is an error: the loader is made by then
    ],
)
def test_what_torch_refuses_is_told_and_the_scripts_settings_are_used(planned, caplog, plan, reason):
    loader = planned(plan)(observing.Numbers(8), 4, num_workers=1, prefetch_factor=3)
    assert (loader.num_workers, loader.prefetch_factor, loader.batch_size) == (1, 3, 4)
    assert replaced_settings(loader) == {}
    assert "the plan is not applied" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("wrong", [{"batch_size": -1}, {"no_such": 1}, {"timeout": -1}])
def test_the_scripts_own_mistakes_are_told_as_without_us(planned, caplog, wrong):
    with pytest.raises((ValueError, TypeError)) as plain:
        DataLoader(observing.Numbers(8), **wrong)
    with pytest.raises(type(plain.value)) as ours:
        planned(PLAN)(observing.Numbers(8), **wrong)
    assert str(ours.value).replace("Planned", "DataLoader") == str(plain.value)
    assert ours.value.__context__ is None
    assert caplog.messages == []


def test_settings_that_are_no_loaders_settings_are_told_and_left_out(planned, caplog):
    loader = planned({"num_workers": 2, "batch_size": 64, "dataset": None})(observing.Numbers(8), 4)
    assert (loader.num_workers, loader.batch_size) == (2, 4)
    assert "batch_size, dataset cannot be applied" in caplog.text


def test_a_torch_that_lacks_a_setting_is_told(caplog):
    class Old:
        def __init__(self, dataset, num_workers=0, worker_init_fn=None):
            self.num_workers = num_workers

    apply_plan({"num_workers": 2, "in_order": False}, Old)
    assert Old([]).num_workers == 2
    assert "this version of torch has no in_order" in caplog.text


# -- threads -------------------------------------------------------------------------------------------------------


def test_the_limit_of_threads_comes_after_the_scripts_own_init(planned, monkeypatch):
    said = []
    monkeypatch.setattr(applied, "limit_threads", lambda threads: said.append(threads))
    loader = planned({"num_workers": 1, "worker_threads": 3})(observing.Numbers(8), worker_init_fn=said.append)
    loader.worker_init_fn(5)
    assert said == [5, 3]


def test_a_limit_that_fails_does_not_cost_the_worker(monkeypatch, caplog):
    def fail(threads):
        raise RuntimeError("no")

    monkeypatch.setattr(applied, "limit_threads", fail)
    LimitThreads(1, None)(0)
    assert "threads are not limited in worker 0: RuntimeError: no" in caplog.text


def test_libraries_that_are_there_are_limited(monkeypatch):
    said = []
    monkeypatch.setitem(sys.modules, "cv2", types.SimpleNamespace(setNumThreads=said.append))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        limit_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert said == [1]


# -- in a script ---------------------------------------------------------------------------------------------------

TRAIN = """
    import itertools, os, signal, sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Nested(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, at):
            inner = DataLoader([at] * 2, batch_size=2)
            assert inner.num_workers == 0
            return sum(int(batch.sum()) for batch in inner)

    def batches(epochs=range(1)):
        train_loader = DataLoader(Nested(), batch_size=2)
        for epoch in epochs:
            for batch in train_loader:
                yield batch.tolist()

    if __name__ == "__main__":
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The script under watch on given terms; returns the outcome and what it printed."""

    def run(body, **terms):
        (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN) + textwrap.indent(textwrap.dedent(body), "    "))
        monkeypatch.chdir(tmp_path)
        output = tmp_path / "printed.txt"
        outcome = run_script(Script(("train.py",)), tmp_path / "run.jsonl", trial=TrialOptions(output=output, **terms))
        return outcome, output.read_text()

    return run


def test_an_unchanged_script_runs_with_the_plan_and_gives_the_same_batches(run):
    outcome, printed = run("print(list(batches()))", dataloader={"num_workers": 2, "worker_threads": 1})
    assert (outcome.code, outcome.stopped) == (0, False)
    told, batches, rest = printed.partition("[[0, 2], [4, 6], [8, 10], [12, 14]]\n")
    assert batches, printed
    assert told + rest == "the plan changes a DataLoader: worker_threads None → 1, num_workers 0 → 2\n"
    (loader,) = load(outcome.recordings[0]).loaders.values()
    assert loader.settings["num_workers"] == LoaderSetting(requested=0, in_force=2)
    assert {fetch.worker for fetch in load(outcome.recordings[0]).fetches} == {0, 1}


def test_a_plan_that_torch_refuses_leaves_the_script_running(run):
    outcome, printed = run("print(len(list(batches())))", dataloader={"num_workers": -3})
    assert outcome.code == 0
    assert "4\n" in printed
    assert "the plan is not applied to a DataLoader" in printed


def test_a_script_is_ended_after_its_steps_as_by_a_ctrl_c(run):
    body = """
        try:
            for batch in batches(itertools.count()):
                pass
        except KeyboardInterrupt:
            print("saved")
            sys.exit(0)
    """
    outcome, printed = run(body, steps=10)
    assert (outcome.code, outcome.stopped, printed) == (0, True, "saved\n")
    assert len(load(outcome.recordings[0]).steps) >= 10


def test_a_loader_made_anew_for_every_epoch_is_ended_too(run):
    outcome, _ = run("while True:\n    list(batches())", steps=10)
    assert (outcome.code, outcome.stopped) == (-signal.SIGINT, True)
    assert len(load(outcome.recordings[0]).loaders) >= 3


def test_a_script_that_does_not_hear_is_ended_for_good(run, monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 0.2)
    body = """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for batch in batches(itertools.count()):
            pass
    """
    outcome, _ = run(body, steps=3)
    assert (outcome.code, outcome.stopped) == (-signal.SIGKILL, True)


def test_a_script_that_ends_before_its_steps_is_not_stopped(run):
    outcome, printed = run("print(len(list(batches()))); print(sys.stdin.read() == '')", steps=100)
    assert (outcome.code, outcome.stopped, printed) == (0, False, "4\nTrue\n")


def test_signals_come_one_after_the_other_each_after_its_grace():
    heard = []
    process = types.SimpleNamespace(send_signal=heard.append)
    now, enough = [0.0], [False]
    ending = child.ChildStopper(process, lambda: enough[0], lambda: now[0])
    assert (ending.check(), heard) == (child.POLL_S, [])
    enough[0] = True
    for seconds in (0.0, 1.0, child.GRACE_S, 1.0, child.GRACE_S, child.GRACE_S):
        now[0] += seconds
        ending.check()
    assert heard == [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    assert child.ChildStopper(process, None).check() is None
