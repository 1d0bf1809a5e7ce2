"""The whole of it on real loaders, in a few seconds each: what is chosen is judged by what was measured."""

import multiprocessing
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import penstock
from penstock.errors import PenstockError, SampleError, SettingError, WorkerCrash
from penstock.tuner.result import Setting
from penstock.tuner.tune import tune

LATENCY_S = 0.004
SECONDS = 4.0
"""Where rates are compared."""
BRIEF_S = 2.0
"""Where it does not matter what is found."""
AMPLE_S = 30.0
"""Where the step ends it long before, on the slowest machine too."""


class Remote(Dataset):
    """Every sample takes a while to come, and the first opens a connection."""

    def __init__(self, count=2000, bad=None):
        self.count, self.bad, self.connection = count, bad, None

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        self.connection = self.connection or "open"
        if at == self.bad:
            raise ValueError("this picture is broken")
        time.sleep(LATENCY_S)
        return torch.tensor(at)


class Slow(Remote):
    """Its second batch comes when a second is nearly over."""

    def __getitem__(self, at):
        time.sleep(0.12)
        return at


class Deadly(Remote):
    def __getitem__(self, at):
        if get_worker_info() is not None:
            import os

            os._exit(3)
        return at


class Stream(IterableDataset):
    def __init__(self, deals):
        self.deals = deals

    def __iter__(self):
        worker = get_worker_info()
        for at in range(100_000):
            if not self.deals or worker is None or at % worker.num_workers == worker.id:
                time.sleep(LATENCY_S)
                yield at


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(LATENCY_S)
            yield torch.rand(3)


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    yield
    assert multiprocessing.active_children() == []


def quick(source, **settings):
    return tune(source, **{"seconds": BRIEF_S, **settings})


def test_a_waiting_dataset_gets_workers_and_the_findings_say_why():
    data = Remote()
    for seconds in (SECONDS, 3 * SECONDS, 9 * SECONDS):
        found = quick(data, batch_size=4, step_s=0.001, seconds=seconds)
        rows = {row.setting: row for row in found.measured}
        if rows[Setting()].how == "measured":  # a busy machine may take all of the time to start a worker
            break
    assert found.kwargs["num_workers"] >= 1
    assert found.samples_s > found.default_samples_s
    assert rows[Setting()].note == "torch's default"
    assert rows[Setting()].how == "measured"
    best = max(row.samples_s for row in found.measured if row.samples_s)
    assert found.samples_s >= 0.969 * best
    assert found.seconds < 3 * seconds
    assert any("computing" in reason and "waiting" in reason for reason in found.reasons)
    assert found.complete
    assert not found.remembered
    assert data.connection is None  # nothing was loaded from the user's own dataset


def test_findings_are_remembered_and_measured_anew_when_asked():
    found = quick(Remote(), batch_size=4)
    again = quick(Remote(), batch_size=4)
    assert again.remembered == found.complete  # a busy machine may not come to measure anything in this time
    assert not again.remembered or again.findings() == found.findings()
    assert not quick(Remote(), batch_size=4, refresh=True).remembered
    assert not quick(Remote(), batch_size=5).remembered


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_loader_is_like_the_given_one_with_the_settings_found():
    loader = DataLoader(Remote(40), batch_size=4, drop_last=True, sampler=range(39, -1, -1))
    found = quick(loader)
    made = found.loader()
    assert made.num_workers == found.kwargs["num_workers"]
    assert [batch.tolist() for batch in made] == [batch.tolist() for batch in loader]
    assert found.loader(num_workers=0).num_workers == 0


def test_settings_that_were_given_are_measured_beside_torchs_defaults():
    found = quick(DataLoader(Remote(), batch_size=4, num_workers=1, prefetch_factor=3))
    notes = {row.setting: row.note for row in found.measured}
    assert notes[Setting()] == "torch's default"
    assert notes[Setting(1, 3)] == "as given"


def test_dice_and_samplers_are_left_as_they_were():
    loader = DataLoader(Remote(40), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(7)
    before = torch.get_rng_state().tolist(), loader.generator.get_state().tolist()
    quick(loader)
    assert (torch.get_rng_state().tolist(), loader.generator.get_state().tolist()) == before


def test_a_compute_bound_loop_gets_few_workers():
    found = quick(TensorDataset(torch.arange(4000)), batch_size=4, step_s=0.02, seconds=SECONDS)
    assert found.kwargs["num_workers"] <= 2


def test_the_users_step_is_run_with_real_batches():
    seen = []
    found = quick(Remote(), batch_size=4, step=lambda batch: seen.append(batch.shape))
    assert set(seen) == {(4,)}
    assert any(reason.startswith("A step takes") for reason in found.reasons)


def test_a_first_item_that_raises_is_named():
    with pytest.raises(SampleError, match="item 2 of the dataset cannot be loaded: ValueError: this picture"):
        quick(Remote(bad=2), batch_size=4)


def test_a_collate_function_that_raises_is_blamed():
    def collate(samples):
        raise TypeError("cannot put these together")

    with pytest.raises(SampleError, match="a batch of items 0, 1, 2, 3 cannot be loaded: TypeError: cannot put"):
        quick(DataLoader(Remote(), batch_size=4, collate_fn=collate))


def test_workers_that_die_are_named_as_such():
    with pytest.raises(WorkerCrash, match="a worker died on batch 0"):
        quick(Deadly(), batch_size=4)


def test_a_dataset_that_cannot_be_sent_to_spawned_workers_is_refused():
    data = Remote()
    data.transform = lambda x: x
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(SettingError, match=r"cannot be started.*picklable"):
        quick(loader)


def test_a_step_that_raises_at_once_is_refused():
    def step(batch):
        raise ZeroDivisionError("no samples")

    with pytest.raises(SettingError, match="step raised ZeroDivisionError: no samples"):
        quick(Remote(), batch_size=4, step=step)


def test_a_step_that_raises_later_leaves_what_was_measured():
    calls = []

    def step(batch):
        calls.append(1)
        if multiprocessing.active_children() and len(calls) > 40:
            raise RuntimeError("out of memory")

    found = quick(Remote(), batch_size=4, step=step, seconds=AMPLE_S)
    assert not found.complete
    assert any("Ended early: step raised RuntimeError: out of memory" in reason for reason in found.reasons)
    assert found.samples_s > 0
    assert not quick(Remote(), batch_size=4, step_s=0.0).remembered


def test_an_iterable_dataset_that_deals_its_samples_out_may_have_many_workers():
    found = quick(Stream(deals=True), batch_size=4, step_s=0.001, seconds=SECONDS)
    assert max(row.setting.workers for row in found.measured) > 1
    assert found.samples_s > found.default_samples_s


def test_an_iterable_dataset_that_would_repeat_itself_gets_one_worker_at_most():
    found = quick(Stream(deals=False), batch_size=4)
    assert max(row.setting.workers for row in found.measured) <= 1
    assert any("the same samples" in reason for reason in found.reasons)


def test_a_dataset_without_a_length_and_without_batches_can_be_tuned():
    found = quick(DataLoader(Endless(), batch_size=None))
    assert found.samples_s > 0


def test_a_dataset_that_cannot_be_copied_has_its_default_computed(tmp_path):
    data = Remote()
    with open(tmp_path / "log", "w") as data.log:
        found = quick(data, batch_size=4)
    row = next(row for row in found.measured if row.setting == Setting())
    assert (row.how, row.runs) == ("computed", 0)
    assert data.connection is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"step": print, "step_s": 0.1}, "two answers"),
        ({"step": "train"}, "cannot be called"),
        ({"step_s": -1.0}, "no time of a step"),
        ({"step_s": float("nan")}, "no time of a step"),
        ({"seconds": 0.0}, "nothing can be measured"),
        ({"seconds": float("nan")}, "nothing can be measured"),
        ({"profile": "best"}, "best"),
    ],
)
def test_wrong_questions_are_refused_before_anything_runs(settings, words):
    with pytest.raises(SettingError, match=words):
        quick(Remote(), **{"batch_size": 4, **settings})


def test_nothing_measurable_at_all_says_what_failed():
    calls = []

    def step(batch):
        calls.append(1)
        if len(calls) > 6:
            raise ValueError("no more")

    with pytest.raises(PenstockError, match="no setting could be measured: no workers: step raised ValueError"):
        quick(Remote(), batch_size=4, step=step, seconds=AMPLE_S)


def test_what_was_only_computed_is_no_finding_once_the_step_has_failed(tmp_path):
    data, calls = Remote(), []

    def step(batch):
        calls.append(1)
        if len(calls) > 6:
            raise ValueError("no more")

    with (
        open(tmp_path / "log", "w") as data.log,  # it cannot be copied, so "no workers" is computed
        pytest.raises(PenstockError, match=r"no setting could be measured: \d+ workers?: step raised ValueError"),
    ):
        quick(data, batch_size=4, step=step, seconds=AMPLE_S)


def test_what_was_only_computed_because_time_was_out_is_not_remembered():
    data = Slow(100)
    found = quick(data, batch_size=4, seconds=1.0)
    assert {row.how for row in found.measured} == {"computed"}
    assert any("Time was out" in reason for reason in found.reasons)
    assert not found.complete
    assert not quick(data, batch_size=4, seconds=1.0).remembered


def test_the_public_name_is_the_function():
    with pytest.raises(SettingError, match="is empty"):
        penstock.tune([], batch_size=2)


def test_the_room_can_be_entered_without_torch():
    code = "import sys; import penstock.tuner.search, penstock.tuner.saved_results, penstock.tuner.result; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
