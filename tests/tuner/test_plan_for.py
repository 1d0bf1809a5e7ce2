"""Plans for datasets that only wait, so that the right number of workers is known on a busy machine too."""

import time

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from penstock.errors import SampleError, SettingError  # noqa: E402
from penstock.plan.document import plan_from_yaml, plan_to_yaml  # noqa: E402
from penstock.tuner.plan_for import plan_for  # noqa: E402

SECONDS = 2.0


class Slow:
    """Waits for every sample, as if it came from an object store."""

    def __init__(self, wait_s=0.01, size=4000):
        self.wait_s = wait_s
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        time.sleep(self.wait_s)
        return torch.full((10,), float(at))


class Bad(Slow):
    def __getitem__(self, at):
        raise ValueError(f"item {at} is bad")


class Same(IterableDataset):
    """Gives every worker all samples."""

    def __iter__(self):
        for at in range(1000):
            time.sleep(0.005)
            yield at


def near(rate, ideal):
    """Return whether a rate is plausible for a loop that mostly sleeps: a busy machine makes it slower, none faster."""
    return 0.4 * ideal < rate < 1.2 * ideal


def test_workers_keep_up_with_the_step():
    found = plan_for(Slow(), batch_size=4, step_s=0.01, seconds=SECONDS)  # 40 ms a batch beside 10 ms a step
    assert found.source == "dataset"
    assert 2 <= found.dataloader["num_workers"] <= 7  # four or five, but a step that oversleeps needs fewer
    assert near(found.samples_s, 4 / 0.05)
    assert near(found.planned_samples_s, 4 / 0.01)
    assert found.fingerprint["dataset"] == {"name": f"{__name__}.Slow", "size": 4000}
    assert plan_from_yaml(plan_to_yaml(found).encode()) == found


def test_given_step_is_timed():
    calls = []
    found = plan_for(Slow(0.001), batch_size=2, step=lambda batch: (calls.append(1), time.sleep(0.02)), seconds=SECONDS)
    assert len(calls) >= 2
    assert near(found.planned_samples_s, 2 / 0.02)
    assert found.dataloader["num_workers"] <= 2


def test_gains_are_relative_to_the_settings_of_a_loader():
    loader = DataLoader(Slow(), batch_size=4, num_workers=2, prefetch_factor=4, persistent_workers=True)
    found = plan_for(loader, step_s=0.01, seconds=SECONDS)
    more = next(change for change in found.changes if change.name == "num_workers")
    assert more.now == 2
    assert more.gain > 0.3
    assert found.dataloader["prefetch_factor"] == 4
    assert found.dataloader["persistent_workers"] is True
    assert any("2 workers, as it is set" in note for note in found.notes)


def test_dataset_that_repeats_samples_gets_at_most_one_worker():
    found = plan_for(Same(), batch_size=4, step_s=0.001, seconds=SECONDS)
    assert found.dataloader["num_workers"] <= 1
    assert any("the same samples" in note for note in found.notes)


def test_random_generators_are_left_as_they_were():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    plan_for(DataLoader(Slow(0.0001), batch_size=4, shuffle=True), seconds=1.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        (Slow(), {}, "how large batches are"),
        (Slow(), {"batch_size": 4, "profile": "best"}, "'best' is not known"),
        (Slow(), {"batch_size": 4, "step": print, "step_s": 1}, "two answers"),
        (Slow(size=0), {"batch_size": 4}, "is empty"),
        (3, {"batch_size": 4}, "neither a dataset nor"),
    ],
)
def test_unusable_arguments_are_refused(source, arguments, message):
    with pytest.raises(SettingError, match=message):
        plan_for(source, **arguments)


def test_item_that_raises_is_named():
    with pytest.raises(SampleError, match="item 0 of the dataset"):
        plan_for(Bad(), batch_size=2, seconds=SECONDS)


def test_step_that_raises_is_reported():
    with pytest.raises(SettingError, match="step raised ZeroDivisionError"):
        plan_for(Slow(0.0), batch_size=2, step=lambda batch: 1 / 0, seconds=SECONDS)
