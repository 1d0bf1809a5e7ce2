"""A penstock.DataLoader delivers what torch's does from datasets that do not run on the engine."""

import gc
import json
import multiprocessing
import os
import random

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import IterableDataset, get_worker_info

import penstock
from penstock import DataLoader
from tests.dataloader.samples import Numbers
from tests.dataloader.streams import STREAMS, CountingDataset, Plain, Shuffled


def as_is(batch):
    return batch


def both(make_dataset, **settings):
    """Return the batches of torch's loader and of Penstock's, with the same seed."""
    delivered = []
    for loader in (torch.utils.data.DataLoader, DataLoader):
        torch.manual_seed(11)
        delivered.append(list(loader(make_dataset(), collate_fn=as_is, **settings)))
    return delivered


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("stream", [*STREAMS, Shuffled])
def test_streams_come_in_torchs_order(stream, workers, batch_size):
    expected, delivered = both(lambda: stream([7, 4]), num_workers=workers, batch_size=batch_size)
    assert delivered == expected
    assert len(delivered) > 3


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_come_one_by_one_in_torchs_shuffled_order_without_a_batch_size(workers):
    expected, delivered = both(lambda: Numbers(9), num_workers=workers, batch_size=None, shuffle=True)
    assert delivered == expected


class Seeds(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        numpy_number = int(np.random.randint(1 << 30))
        yield info.id, info.num_workers, info.seed, torch.initial_seed(), random.random(), numpy_number


def test_workers_have_torchs_seeds():
    expected, delivered = both(Seeds, num_workers=2)
    assert delivered == expected


class KnowsItself(IterableDataset):
    marked = False

    def __iter__(self):
        assert get_worker_info().dataset is self
        yield self.marked


def _mark(worker):
    get_worker_info().dataset.marked = worker == 1


def test_worker_init_fn_changes_the_dataset_of_its_worker():
    assert list(DataLoader(KnowsItself(), num_workers=2, batch_size=None, worker_init_fn=_mark)) == [False, True]


class Fails(IterableDataset):
    def __iter__(self):
        yield 1
        raise KeyError("no such record")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_keeps_its_type_and_shows_the_users_code(workers):
    iterator = iter(DataLoader(Fails(), num_workers=workers, batch_size=None))
    assert next(iterator) == 1
    with pytest.raises(KeyError, match="no such record") as caught:
        next(iterator)
    if workers:
        assert 'raise KeyError("no such record")' in str(caught.value)


def _refuse(worker):
    raise OSError("no licence")


def test_an_error_of_worker_init_fn_is_raised_by_iter():
    with pytest.raises(OSError, match="no licence"):
        iter(DataLoader(Plain([1]), num_workers=1, worker_init_fn=_refuse))


class Waits(IterableDataset):
    """Worker 0 gives its first sample when the other worker's samples have all been taken."""

    def __init__(self, gate):
        self.gate = gate

    def __iter__(self):
        if get_worker_info().id == 0:
            os.read(self.gate, 1)
            yield "slow"
        else:
            yield from range(20)


def test_out_of_order_a_fast_worker_goes_on_while_another_one_is_held_up():
    reading, writing = os.pipe()
    loader = DataLoader(Waits(reading), num_workers=2, batch_size=None, in_order=False)
    iterator = iter(loader)
    assert [next(iterator) for _ in range(20)] == list(range(20))
    os.write(writing, b"x")
    assert list(iterator) == ["slow"]
    os.close(reading)
    os.close(writing)


class HasInnerLoader(IterableDataset):
    """Draws from a loader of its own inside the worker."""

    def __iter__(self):
        yield from torch.utils.data.DataLoader(Numbers(4), batch_size=2)


def test_a_dataset_may_use_a_loader_of_its_own_in_a_worker():
    delivered = list(DataLoader(HasInnerLoader(), num_workers=1, batch_size=None))
    assert [batch.tolist() for batch in delivered] == [[0, 1], [2, 3]]


class FailsOnce(CountingDataset):
    def __getitem__(self, index):
        if index == 3:
            raise ValueError("damaged")
        return super().__getitem__(index)


def test_a_batch_that_failed_is_not_made_again_after_the_loop_went_on():
    loader = DataLoader(FailsOnce(8), num_workers=2, collate_fn=as_is)
    iterator = iter(loader)
    delivered = [next(iterator) for _ in range(3)]
    with pytest.raises(ValueError, match="damaged"):
        next(iterator)
    delivered += [next(iterator), next(iterator)]
    resumed = DataLoader(FailsOnce(8), num_workers=2, collate_fn=as_is)
    resumed.load_state_dict(loader.state_dict())
    assert [index for [(index, _)] in [*delivered, *resumed]] == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize("dataset", [Plain([7, 4]), CountingDataset(11)])
def test_the_watcher_counts_the_samples_of_each_batch(dataset, tmp_path):
    path = tmp_path / "run.jsonl"
    with penstock.watch(DataLoader(dataset, batch_size=3, num_workers=2), record=path) as batches:
        sizes = [len(batch) if isinstance(batch, torch.Tensor) else len(batch[0]) for batch in batches]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["samples"] for line in lines if line["kind"] == "fetch") == sorted(sizes)


def test_persistent_workers_stay_the_same_processes():
    loader = DataLoader(Pid(), num_workers=2, persistent_workers=True, batch_size=None)
    assert list(loader) == list(loader)


def test_persistent_workers_end_with_the_last_reference_to_their_loader():
    loader = DataLoader(Plain([2, 2]), num_workers=2, persistent_workers=True)
    list(loader)
    gc.disable()  # a reference cycle would keep them until a collection
    try:
        del loader
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()


class Pid(IterableDataset):
    def __iter__(self):
        yield os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_do_not_share_memory_with_the_program_deliver_states_as_well(method):
    loader = DataLoader(CountingDataset(6), num_workers=1, multiprocessing_context=method, collate_fn=as_is)
    iterator = iter(loader)
    assert next(iterator) == [(0, 1)]
    resumed = DataLoader(CountingDataset(6), num_workers=1, multiprocessing_context=method, collate_fn=as_is)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == list(iterator)


def test_a_longer_stream_than_its_length_is_warned_of_as_by_torch():
    class Short(Plain):
        def __len__(self):
            return 2

    loader = DataLoader(Short([3]))
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="Length of IterableDataset"):
        list(loader)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs a GPU")
@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_of_streams_are_pinned(workers):
    class Tensors(IterableDataset):
        def __iter__(self):
            yield torch.ones(3)

    [batch] = DataLoader(Tensors(), num_workers=workers, pin_memory=True)
    assert batch.is_pinned()
