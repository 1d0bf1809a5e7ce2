"""Whole tunings of real loaders, in a few seconds each: the choice is checked against the measurements."""

import multiprocessing
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import penstock
from penstock.errors import PenstockError, SampleError, SettingError, WorkerCrash
from penstock.plan.profiles import profile_goal
from penstock.tuner.result import WorkerSettings
from penstock.tuner.trials import SettingTrials
from penstock.tuner.tune import tune
from penstock.tuner.tuning_run import TuningRequest, TuningRun

LATENCY_S = 0.004
SECONDS = 4.0
"""Seconds of a tuning whose rates are compared."""
BRIEF_S = 2.0
"""Seconds of a tuning whose result does not matter."""
AMPLE_S = 30.0
"""Seconds of a tuning that the step ends long before, on the slowest machine too."""


class Remote(Dataset):
    """Waits for every sample; the first access opens a connection."""

    def __init__(self, count=2000, bad=None):
        self.count, self.bad, self.connection = count, bad, None

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        self.connection = self.connection or "open"
        if at == self.bad:
            raise ValueError("this image is broken")
        time.sleep(LATENCY_S)
        return torch.tensor(at)


class Slow(Remote):
    """Delivers its second batch when a second is nearly over."""

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
    def __init__(self, divides):
        self.divides = divides

    def __iter__(self):
        worker = get_worker_info()
        for at in range(100_000):
            if not self.divides or worker is None or at % worker.num_workers == worker.id:
                time.sleep(LATENCY_S)
                yield at


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(LATENCY_S)
            yield torch.rand(3)


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


def quick(source, **settings):
    return tune(source, **{"seconds": BRIEF_S, **settings})


def test_waiting_dataset_gets_workers_and_reasons():
    data = Remote()
    for seconds in (SECONDS, 3 * SECONDS, 9 * SECONDS):
        found = quick(data, batch_size=4, step_s=0.001, seconds=seconds)
        rows = {row.setting: row for row in found.measured}
        if rows[WorkerSettings()].how == "measured":  # a busy machine may take all of the time to start a worker
            break
    assert found.kwargs["num_workers"] >= 1
    assert found.samples_s > found.default_samples_s
    assert rows[WorkerSettings()].note == "torch's default"
    assert rows[WorkerSettings()].how == "measured"
    best = max(row.samples_s for row in found.measured if row.samples_s)
    assert found.samples_s >= 0.969 * best
    assert found.seconds < 3 * seconds
    assert any("computing" in reason and "waiting" in reason for reason in found.reasons)
    assert found.complete
    assert not found.remembered
    assert data.connection is None  # no sample was loaded from the user's own dataset


def test_results_are_stored_and_measured_anew_with_refresh():
    found = quick(Remote(), batch_size=4)
    again = quick(Remote(), batch_size=4)
    assert again.remembered == found.complete  # a busy machine may not measure anything in this time
    assert not again.remembered or again.findings() == found.findings()
    assert not quick(Remote(), batch_size=4, refresh=True).remembered
    assert not quick(Remote(), batch_size=5).remembered


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_made_loader_is_like_the_given_one_with_the_chosen_settings():
    loader = DataLoader(Remote(40), batch_size=4, drop_last=True, sampler=range(39, -1, -1))
    found = quick(loader)
    made = found.loader()
    assert made.num_workers == found.kwargs["num_workers"]
    assert [batch.tolist() for batch in made] == [batch.tolist() for batch in loader]
    assert found.loader(num_workers=0).num_workers == 0


def test_given_settings_are_measured_beside_torch_defaults():
    found = quick(DataLoader(Remote(), batch_size=4, num_workers=1, prefetch_factor=3))
    notes = {row.setting: row.note for row in found.measured}
    assert notes[WorkerSettings()] == "torch's default"
    assert notes[WorkerSettings(1, 3)] == "as given"


def test_random_generators_are_left_as_they_were():
    loader = DataLoader(Remote(40), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(7)
    before = torch.get_rng_state().tolist(), loader.generator.get_state().tolist()
    quick(loader)
    assert (torch.get_rng_state().tolist(), loader.generator.get_state().tolist()) == before


def test_compute_bound_loop_gets_few_workers():
    found = quick(TensorDataset(torch.arange(4000)), batch_size=4, step_s=0.02, seconds=SECONDS)
    assert found.kwargs["num_workers"] <= 2


def test_step_is_called_with_real_batches():
    batches = []
    found = quick(Remote(), batch_size=4, step=lambda batch: batches.append(batch.shape))
    assert set(batches) == {(4,)}
    assert any(reason.startswith("A step takes") for reason in found.reasons)


def test_item_that_raises_is_named():
    with pytest.raises(SampleError, match="item 2 of the dataset cannot be loaded: ValueError: this image"):
        quick(Remote(bad=2), batch_size=4)


def test_collate_function_that_raises_is_reported():
    def collate(samples):
        raise TypeError("cannot collate these")

    with pytest.raises(SampleError, match="a batch of items 0, 1, 2, 3 cannot be loaded: TypeError: cannot collate"):
        quick(DataLoader(Remote(), batch_size=4, collate_fn=collate))


def test_dead_worker_is_reported():
    with pytest.raises(WorkerCrash, match="a worker died on batch 0"):
        quick(Deadly(), batch_size=4)


def test_dataset_that_cannot_be_pickled_is_refused_for_spawned_workers():
    data = Remote()
    data.transform = lambda x: x
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(SettingError, match=r"cannot be started.*picklable"):
        quick(loader)


def test_step_that_raises_at_once_is_refused():
    def step(batch):
        raise ZeroDivisionError("no samples")

    with pytest.raises(SettingError, match="step raised ZeroDivisionError: no samples"):
        quick(Remote(), batch_size=4, step=step)


def test_step_that_raises_later_keeps_the_measurements_before():
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


def test_iterable_dataset_that_divides_its_samples_may_get_many_workers():
    found = quick(Stream(divides=True), batch_size=4, step_s=0.001, seconds=SECONDS)
    assert max(row.setting.workers for row in found.measured) > 1
    assert found.samples_s > found.default_samples_s


def test_iterable_dataset_that_repeats_samples_gets_at_most_one_worker():
    found = quick(Stream(divides=False), batch_size=4)
    assert max(row.setting.workers for row in found.measured) <= 1
    assert any("the same samples" in reason for reason in found.reasons)


def test_dataset_without_length_and_batch_size_can_be_tuned():
    found = quick(DataLoader(Endless(), batch_size=None))
    assert found.samples_s > 0


def test_rate_without_workers_is_computed_for_a_dataset_that_cannot_be_copied(tmp_path):
    data = Remote()
    with open(tmp_path / "log", "w") as data.log:
        found = quick(data, batch_size=4)
    row = next(row for row in found.measured if row.setting == WorkerSettings())
    assert (row.how, row.runs) == ("computed", 0)
    assert data.connection is None


@pytest.mark.parametrize(
    ("settings", "message"),
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
def test_contradictory_arguments_are_refused_before_any_run(settings, message):
    with pytest.raises(SettingError, match=message):
        quick(Remote(), **{"batch_size": 4, **settings})


def test_failure_of_every_run_is_reported():
    calls = []

    def step(batch):
        calls.append(1)
        if len(calls) > 6:
            raise ValueError("no more")

    with pytest.raises(PenstockError, match="no setting could be measured: no workers: step raised ValueError"):
        quick(Remote(), batch_size=4, step=step, seconds=AMPLE_S)


def test_computed_rate_is_no_result_if_the_step_failed(tmp_path):
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


def test_result_that_was_only_computed_for_lack_of_time_is_not_stored():
    data = Slow(100)
    found = quick(data, batch_size=4, seconds=1.0)
    assert {row.how for row in found.measured} == {"computed"}
    assert any("The time ended" in reason for reason in found.reasons)
    assert not found.complete
    assert not quick(data, batch_size=4, seconds=1.0).remembered


def test_penstock_tune_is_the_function():
    with pytest.raises(SettingError, match="is empty"):
        penstock.tune([], batch_size=2)


def test_saved_results_can_be_imported_without_torch():
    code = "import sys; import penstock.tuner.saved_results, penstock.tuner.result; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


# -- penstock.DataLoader -------------------------------------------------------------------------------------------


def swapped_rates(dataset, setting, **settings):
    """Return the rates of penstock.DataLoader that a tuning measures with this setting."""
    trials = SettingTrials(DataLoader(dataset, batch_size=4, **settings), lambda batch: None, AMPLE_S)
    trials.run_swapped(setting)
    return trials.swapped_batches_s


def test_penstock_dataloader_is_run_where_its_workers_would_make_the_batches():
    (rate,) = swapped_rates(Remote(), WorkerSettings(1))
    assert rate > 0
    assert swapped_rates(Remote(), WorkerSettings()) == []
    assert swapped_rates(Stream(divides=True), WorkerSettings(1)) == []
    assert swapped_rates(Remote(bad=2), WorkerSettings(1)) == []  # the failure is none of the tuning's


@pytest.mark.parametrize(("swapped", "note"), [([12.0, 12.0], "2 workers: 12 samples/s, +20%"), ([10.4], ""), ([], "")])
def test_penstock_dataloader_is_proposed_if_it_was_faster_by_more_than_chance(swapped, note):
    request = TuningRequest(step=None, step_s=None, goal=profile_goal("balanced"), seconds=AMPLE_S)
    run = TuningRun(DataLoader(range(4)), request, is_given=False)
    run._trials.swapped_batches_s = swapped
    assert note in run._swap_note(WorkerSettings(2), 10.0)
    assert bool(note) == bool(run._swap_note(WorkerSettings(2), 10.0))


def test_a_penstock_dataloader_is_tuned_as_one_and_not_swapped():
    tuned = tune(penstock.DataLoader(Remote(), batch_size=4, num_workers=1), seconds=SECONDS, refresh=True)
    assert type(tuned.loader(num_workers=0)) is penstock.DataLoader
    assert tuned.swapped_samples_s is None
    assert not any("penstock.DataLoader" in reason for reason in tuned.reasons)
