"""Settings of a plan that replace those of a script: which are replaced, which stay, and what is logged."""

import inspect
import multiprocessing
import signal
import sys
import textwrap
import types

import pytest
import torch
from tests.support import watcher_helpers
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, get_worker_info

from penstock.recording.format import LoaderSetting
from penstock.recording.reader import load
from penstock.watcher.dataloader.main_process import describe
from penstock.watcher.script import apply_plan as apply_plan_module
from penstock.watcher.script import child_process
from penstock.watcher.script.apply_plan import LimitThreads, apply_plan, limit_threads, replaced_settings
from penstock.watcher.script.runner import Script, TrialOptions, run_script

PLAN = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}


@pytest.fixture(autouse=True)
def no_messages_logged_before(monkeypatch):
    """Forget the messages of earlier tests, because each message is logged only once."""
    monkeypatch.setattr(apply_plan_module, "_logged", set())


@pytest.fixture
def planned():
    """Return a function that makes a DataLoader class with a plan applied; torch's own class is not patched."""

    def make_class(plan):
        loader_class = type("Planned", (DataLoader,), {})
        apply_plan(plan, loader_class)
        return loader_class

    return make_class


class Divided(IterableDataset):
    """A dataset that divides its samples between the workers."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(8)[info.id :: info.num_workers] if info else range(8))


class Undivided(IterableDataset):
    """A dataset of which every worker delivers all samples."""

    def __iter__(self):
        return iter(range(8))


# -- what is replaced ----------------------------------------------------------------------------------------------


def test_a_plan_replaces_only_the_settings_it_holds(planned):
    loader = planned(PLAN)(watcher_helpers.Numbers(8), 4, drop_last=True, num_workers=1, timeout=7)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 4, True)
    assert (loader.batch_size, loader.drop_last, loader.timeout, loader.in_order) == (4, True, 7, True)
    assert replaced_settings(loader) == {
        "num_workers": (1, 2),
        "prefetch_factor": (2, 4),  # torch's default, which the script had not given
        "persistent_workers": (False, True),
    }


def test_settings_given_by_position_are_replaced(planned):
    loader = planned({"num_workers": 2, "pin_memory": False})(
        watcher_helpers.Numbers(8), 4, None, None, None, 1, None, True
    )
    assert (loader.batch_size, loader.num_workers, loader.pin_memory) == (4, 2, False)


def test_a_setting_that_equals_the_plans_is_not_reported_as_replaced(planned, caplog):
    loader = planned({"num_workers": 1, "multiprocessing_context": "fork"})(
        watcher_helpers.Numbers(8), num_workers=1, multiprocessing_context=multiprocessing.get_context("fork")
    )
    assert replaced_settings(loader) == {}
    assert caplog.messages == []


def test_the_recording_has_the_scripts_value_as_requested_and_the_plans_as_in_force(planned):
    loader = planned({**PLAN, "worker_threads": 1})(watcher_helpers.Numbers(8), num_workers=1)
    settings = describe(loader, 0, requested={"num_workers": 32}).settings
    assert settings["num_workers"] == LoaderSetting(requested=1, in_force=2)
    assert settings["prefetch_factor"] == LoaderSetting(requested=2, in_force=4)
    assert settings["worker_threads"] == LoaderSetting(in_force=1)
    assert settings["batch_size"] == LoaderSetting(in_force=1)


def test_replaced_settings_are_logged_once_for_loaders_made_repeatedly(planned, caplog):
    loader_class = planned({"num_workers": 2})
    for _ in range(3):
        loader_class(watcher_helpers.Numbers(8), num_workers=1)
    assert caplog.messages == ["the plan changes a DataLoader: num_workers 1 → 2"]


def test_a_plan_without_workers_drops_all_settings_of_workers(planned):
    worker_settings = {
        "prefetch_factor": 3,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
        "timeout": 5,
    }
    loader_class = planned({"num_workers": 0, "prefetch_factor": 4, "persistent_workers": True, "worker_threads": 1})
    loader = loader_class(watcher_helpers.Numbers(8), 4, num_workers=2, **worker_settings)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)
    assert (loader.multiprocessing_context, loader.timeout, loader.worker_init_fn) == (None, 0, None)
    assert [indices.tolist() for indices, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_worker_settings_are_dropped_if_neither_script_nor_plan_has_workers(planned):
    loader = planned({"prefetch_factor": 4, "in_order": False, "worker_threads": 1})(watcher_helpers.Numbers(8))
    assert (loader.num_workers, loader.prefetch_factor, loader.in_order) == (0, None, False)
    assert list(replaced_settings(loader)) == ["in_order"]


def test_a_batch_sampler_stays_the_scripts(planned):
    sampler = BatchSampler(SequentialSampler(range(8)), 4, False)
    loader = planned({"num_workers": 2})(watcher_helpers.Numbers(8), batch_sampler=sampler)
    assert loader.batch_sampler is sampler
    assert [indices.tolist() for indices, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_plan_applies_to_a_subclass_with_other_arguments(planned):
    class Own(planned(PLAN)):
        def __init__(self, size):
            super().__init__(watcher_helpers.Numbers(size), num_workers=1)

    assert Own(8).num_workers == 2


def test_the_signature_that_frameworks_inspect_stays_that_of_torch(planned):
    assert inspect.signature(planned(PLAN).__init__) == inspect.signature(DataLoader.__init__)


# -- what stays the script's ---------------------------------------------------------------------------------------


def test_an_iterable_dataset_that_divides_its_samples_gets_the_plans_workers(planned):
    loader = planned({"num_workers": 2})(Divided(), batch_size=4)
    assert loader.num_workers == 2
    assert sorted(int(x) for batch in loader for x in batch) == list(range(8))


def test_an_undivided_iterable_dataset_keeps_one_worker_and_gets_the_other_settings(planned, caplog):
    loader = planned({"num_workers": 2, "prefetch_factor": 4})(Undivided(), num_workers=1)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 4)
    assert "num_workers stays 1" in caplog.text


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_an_iterable_dataset_with_two_workers_in_the_script_gets_the_plans_workers(planned):
    assert planned({"num_workers": 1})(Undivided(), num_workers=2).num_workers == 1
    assert planned({"num_workers": 3})(Undivided(), num_workers=2).num_workers == 3


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"num_workers": 2, "multiprocessing_context": "teleport"}, "teleport"),
        ({"num_workers": -1}, "non-negative"),
        ({"num_workers": "many"}, "TypeError"),
        # torch warns after it has set the attributes; pytest makes an error of the warning
        ({"num_workers": 4096}, "This DataLoader will create"),
    ],
)
def test_settings_that_torch_refuses_are_logged_and_the_scripts_are_used(planned, caplog, plan, reason):
    loader = planned(plan)(watcher_helpers.Numbers(8), 4, num_workers=1, prefetch_factor=3)
    assert (loader.num_workers, loader.prefetch_factor, loader.batch_size) == (1, 3, 4)
    assert replaced_settings(loader) == {}
    assert "the plan is not applied" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("arguments", [{"batch_size": -1}, {"no_such": 1}, {"timeout": -1}])
def test_errors_in_the_scripts_arguments_are_raised_as_by_torch(planned, caplog, arguments):
    with pytest.raises((ValueError, TypeError)) as by_torch:
        DataLoader(watcher_helpers.Numbers(8), **arguments)
    with pytest.raises(type(by_torch.value)) as with_plan:
        planned(PLAN)(watcher_helpers.Numbers(8), **arguments)
    assert str(with_plan.value).replace("Planned", "DataLoader") == str(by_torch.value)
    assert with_plan.value.__context__ is None
    assert caplog.messages == []


def test_settings_that_a_plan_cannot_replace_are_logged_and_ignored(planned, caplog):
    loader = planned({"num_workers": 2, "batch_size": 64, "dataset": None})(watcher_helpers.Numbers(8), 4)
    assert (loader.num_workers, loader.batch_size) == (2, 4)
    assert "batch_size, dataset cannot be applied" in caplog.text


def test_a_setting_that_this_torch_lacks_is_logged_and_ignored(caplog):
    class OldDataLoader:
        def __init__(self, dataset, num_workers=0, worker_init_fn=None):
            self.num_workers = num_workers

    apply_plan({"num_workers": 2, "in_order": False}, OldDataLoader)
    assert OldDataLoader([]).num_workers == 2
    assert "this version of torch has no in_order" in caplog.text


# -- threads -------------------------------------------------------------------------------------------------------


def test_threads_are_limited_after_the_scripts_worker_init_fn(planned, monkeypatch):
    calls = []
    monkeypatch.setattr(apply_plan_module, "limit_threads", lambda threads: calls.append(("threads", threads)))
    loader_class = planned({"num_workers": 1, "worker_threads": 3})
    loader = loader_class(watcher_helpers.Numbers(8), worker_init_fn=lambda worker: calls.append(("init", worker)))
    loader.worker_init_fn(5)
    assert calls == [("init", 5), ("threads", 3)]


def test_a_failure_to_limit_threads_is_only_logged(monkeypatch, caplog):
    def fail(threads):
        raise RuntimeError("no")

    monkeypatch.setattr(apply_plan_module, "limit_threads", fail)
    LimitThreads(1, None)(0)
    assert "threads are not limited in worker 0: RuntimeError: no" in caplog.text


def test_imported_libraries_are_limited(monkeypatch):
    cv2_threads = []
    monkeypatch.setitem(sys.modules, "cv2", types.SimpleNamespace(setNumThreads=cv2_threads.append))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        limit_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert cv2_threads == [1]


# -- in a script ---------------------------------------------------------------------------------------------------

TRAIN = """
    import itertools, os, signal, sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Nested(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            inner = DataLoader([index] * 2, batch_size=2)
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
    """Return a function that runs a script with this body under watch; it returns the result and the output."""

    def run(body, **options):
        (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN) + textwrap.indent(textwrap.dedent(body), "    "))
        monkeypatch.chdir(tmp_path)
        output = tmp_path / "printed.txt"
        trial = TrialOptions(output=output, **options)
        result = run_script(Script(("train.py",)), tmp_path / "run.jsonl", trial=trial)
        return result, output.read_text()

    return run


def test_an_unchanged_script_runs_with_the_plan_and_prints_the_same_batches(run):
    result, printed = run("print(list(batches()))", dataloader={"num_workers": 2, "worker_threads": 1})
    assert (result.code, result.stopped) == (0, False)
    before, batches, after = printed.partition("[[0, 2], [4, 6], [8, 10], [12, 14]]\n")
    assert batches, printed
    assert before + after == "the plan changes a DataLoader: worker_threads None → 1, num_workers 0 → 2\n"
    (loader,) = load(result.recordings[0]).loaders.values()
    assert loader.settings["num_workers"] == LoaderSetting(requested=0, in_force=2)
    assert {fetch.worker for fetch in load(result.recordings[0]).fetches} == {0, 1}


def test_the_script_runs_on_if_torch_refuses_the_plan(run):
    result, printed = run("print(len(list(batches())))", dataloader={"num_workers": -3})
    assert result.code == 0
    assert "4\n" in printed
    assert "the plan is not applied to a DataLoader" in printed


def test_a_script_is_stopped_by_sigint_after_the_given_steps(run):
    body = """
        try:
            for batch in batches(itertools.count()):
                pass
        except KeyboardInterrupt:
            print("saved")
            sys.exit(0)
    """
    result, printed = run(body, steps=10)
    assert (result.code, result.stopped, printed) == (0, True, "saved\n")
    assert len(load(result.recordings[0]).steps) >= 10


def test_steps_are_counted_over_loaders_recreated_for_every_epoch(run):
    result, _ = run("while True:\n    list(batches())", steps=10)
    assert (result.code, result.stopped) == (-signal.SIGINT, True)
    assert len(load(result.recordings[0]).loaders) >= 3


def test_a_script_that_ignores_sigint_and_sigterm_is_killed(run, monkeypatch):
    monkeypatch.setattr(child_process, "GRACE_S", 0.2)
    body = """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for batch in batches(itertools.count()):
            pass
    """
    result, _ = run(body, steps=3)
    assert (result.code, result.stopped) == (-signal.SIGKILL, True)


def test_a_script_that_ends_before_the_given_steps_is_not_stopped(run):
    result, printed = run("print(len(list(batches()))); print(sys.stdin.read() == '')", steps=100)
    assert (result.code, result.stopped, printed) == (0, False, "4\nTrue\n")


def test_each_stop_signal_is_sent_one_grace_period_after_the_last():
    sent = []
    process = types.SimpleNamespace(send_signal=sent.append)
    now, should_stop = [0.0], [False]
    stopper = child_process.ChildStopper(process, lambda: should_stop[0], lambda: now[0])
    assert (stopper.check(), sent) == (child_process.POLL_S, [])
    should_stop[0] = True
    for seconds in (0.0, 1.0, child_process.GRACE_S, 1.0, child_process.GRACE_S, child_process.GRACE_S):
        now[0] += seconds
        stopper.check()
    assert sent == [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    assert child_process.ChildStopper(process, None).check() is None
