"""How a DataLoader is described."""

import multiprocessing

import pytest
import torch
from tests.support import watcher_helpers as observing
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from penstock.recording.format import LoaderSetting
from penstock.watcher.dataloader import main_process as torchloader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


RANDOM = "torch.utils.data.sampler.RandomSampler"


def in_force(loader, *names):
    settings = torchloader.describe(loader, 0).settings
    return tuple(settings[name].in_force for name in names)


def test_settings_stand_beside_what_was_requested():
    loader = DataLoader(observing.Numbers(10), 4, num_workers=2, multiprocessing_context="spawn", drop_last=True)
    line = torchloader.describe(loader, 5, "train", {"num_workers": 16})
    assert (line.loader, line.name, line.type) == (5, "train", "torch")
    assert (line.dataset, line.dataset_size, line.batches) == ("tests.support.watcher_helpers.Numbers", 10, 2)
    assert line.settings["num_workers"] == LoaderSetting(requested=16, in_force=2)
    assert line.settings["prefetch_factor"] == LoaderSetting(in_force=2)
    assert in_force(loader, "multiprocessing_context", "batch_size", "drop_last") == ("spawn", 4, True)
    assert in_force(loader, "shuffle", "sampler") == (False, "torch.utils.data.sampler.SequentialSampler")
    assert in_force(loader, "worker_init_fn", "persistent_workers", "in_order") == (False, False, True)


def test_memory_that_cannot_be_pinned_is_requested_but_not_in_force():
    loader = DataLoader(observing.Numbers(), pin_memory=True)
    expected = LoaderSetting(requested=True, in_force=torch.accelerator.is_available())
    assert torchloader.describe(loader, 0).settings["pin_memory"] == expected


def test_describing_leaves_the_start_method_to_the_script():
    loader = DataLoader(observing.Numbers(), num_workers=1)
    before = multiprocessing.get_start_method(allow_none=True)
    (method,) = in_force(loader, "multiprocessing_context")
    assert method in multiprocessing.get_all_start_methods()
    assert multiprocessing.get_start_method(allow_none=True) == before


def test_an_iterable_datasets_loader_is_not_asked_for_its_length():
    loader = DataLoader(observing.Lengthy([7]), 2)
    line = torchloader.describe(loader, 0)
    assert (line.dataset_size, line.batches) == (7, 4)
    assert loader._IterableDataset_len_called is None


def test_lengths_that_cannot_be_told_are_left_out():
    line = torchloader.describe(DataLoader(observing.Shards([7]), 2), 0)
    assert (line.dataset_size, line.batches) == (None, None)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"shuffle": True}, (True, RANDOM)),
        ({"sampler": [2, 1]}, (None, "builtins.list")),
        ({"batch_sampler": [[2, 1]]}, (None, "builtins.list")),
        (
            {"batch_sampler": BatchSampler(RandomSampler(range(4)), 2, False)},
            (True, RANDOM),
        ),
    ],
)
def test_the_order_is_told_by_whatever_decides_it(settings, expected):
    assert in_force(DataLoader(observing.Numbers(), **settings), "shuffle", "sampler") == expected


def test_names_of_functions_are_told_not_the_functions():
    loader = DataLoader(observing.Numbers(), collate_fn=observing.bad_collate, worker_init_fn=print)
    assert in_force(loader, "collate_fn", "worker_init_fn") == ("tests.support.watcher_helpers.bad_collate", True)
