import multiprocessing

import pytest
import torch
from tests.support import watcher_helpers
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from penstock.recording.format import LoaderSetting
from penstock.watcher.dataloader.main_process import describe
from penstock.watcher.dataloader.settings import command_line_settings

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

RANDOM_SAMPLER = "torch.utils.data.sampler.RandomSampler"


def values_in_force(loader, *names):
    settings = describe(loader, 0).settings
    return tuple(settings[name].in_force for name in names)


def test_settings_are_described_as_requested_and_as_in_force():
    loader = DataLoader(watcher_helpers.Numbers(10), 4, num_workers=2, multiprocessing_context="spawn", drop_last=True)
    line = describe(loader, 5, "train", {"num_workers": 16})
    assert (line.loader, line.name, line.type) == (5, "train", "torch")
    assert (line.dataset, line.dataset_size, line.batches) == ("tests.support.watcher_helpers.Numbers", 10, 2)
    assert line.settings["num_workers"] == LoaderSetting(requested=16, in_force=2)
    assert line.settings["prefetch_factor"] == LoaderSetting(in_force=2)
    assert values_in_force(loader, "multiprocessing_context", "batch_size", "drop_last") == ("spawn", 4, True)
    assert values_in_force(loader, "shuffle", "sampler") == (False, "torch.utils.data.sampler.SequentialSampler")
    assert values_in_force(loader, "worker_init_fn", "persistent_workers", "in_order") == (False, False, True)


def test_pin_memory_is_in_force_only_with_an_accelerator():
    loader = DataLoader(watcher_helpers.Numbers(), pin_memory=True)
    expected = LoaderSetting(requested=True, in_force=torch.accelerator.is_available())
    assert describe(loader, 0).settings["pin_memory"] == expected


def test_describing_a_loader_does_not_fix_the_start_method():
    loader = DataLoader(watcher_helpers.Numbers(), num_workers=1)
    before = multiprocessing.get_start_method(allow_none=True)
    (method,) = values_in_force(loader, "multiprocessing_context")
    assert method in multiprocessing.get_all_start_methods()
    assert multiprocessing.get_start_method(allow_none=True) == before


def test_the_batches_of_an_iterable_dataset_are_computed_without_calling_len_of_the_loader():
    loader = DataLoader(watcher_helpers.SizedShards([7]), 2)
    line = describe(loader, 0)
    assert (line.dataset_size, line.batches) == (7, 4)
    assert loader._IterableDataset_len_called is None


def test_a_dataset_without_a_length_has_no_size_and_no_number_of_batches():
    line = describe(DataLoader(watcher_helpers.Shards([7]), 2), 0)
    assert (line.dataset_size, line.batches) == (None, None)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"shuffle": True}, (True, RANDOM_SAMPLER)),
        ({"sampler": [2, 1]}, (None, "builtins.list")),
        ({"batch_sampler": [[2, 1]]}, (None, "builtins.list")),
        ({"batch_sampler": BatchSampler(RandomSampler(range(4)), 2, False)}, (True, RANDOM_SAMPLER)),
    ],
)
def test_shuffle_and_sampler_are_those_that_decide_the_order(settings, expected):
    assert values_in_force(DataLoader(watcher_helpers.Numbers(), **settings), "shuffle", "sampler") == expected


def test_functions_are_described_by_their_names():
    loader = DataLoader(watcher_helpers.Numbers(), collate_fn=watcher_helpers.bad_collate, worker_init_fn=print)
    expected = ("tests.support.watcher_helpers.bad_collate", True)
    assert values_in_force(loader, "collate_fn", "worker_init_fn") == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num-workers", "32"],
        ["--num_workers=32"],
        ["data.num_workers=32"],
        ["--data.loader.num-workers=32"],
        ["--workers", "8", "--epochs", "3", "--workers", "32"],
    ],
)
def test_settings_are_read_from_a_command_line(arguments):
    assert command_line_settings(["train.py", *arguments]) == {"num_workers": 32}


@pytest.mark.parametrize(
    "arguments", [[], ["--num-workers"], ["--num-workers", "auto"], ["num_workers", "32"], ["--lr=0.1"], ["="]]
)
def test_a_command_line_without_numbers_for_settings_gives_none(arguments):
    assert command_line_settings(arguments) == {}


def test_a_value_that_the_script_clamps_differs_from_the_requested_one(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--num-workers", "32"])
    setting = describe(DataLoader(range(4), num_workers=min(2, max(1, 32))), 0).settings["num_workers"]
    assert (setting.requested, setting.in_force) == (32, 2)
