"""A penstock.DataLoader over a dataset that does not run on the engine resumes exactly."""

import gc
import json
import logging
import multiprocessing
from itertools import chain

import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataLoader
from penstock.errors import SettingError
from tests.dataloader.samples import Numbers
from tests.dataloader.streams import (
    STREAMS,
    CountingDataset,
    EpochSamplerWithState,
    IteratorStateSampler,
    Plain,
    Shuffled,
    WithState,
)


def as_is(batch):
    return batch


def _saved_and_loaded(loader):
    """Return the loader's state as it comes back from a file."""
    return json.loads(json.dumps(loader.state_dict()))


@settings(max_examples=25)
@given(
    stream=st.sampled_from(STREAMS),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=2),
    in_process=st.booleans(),
    batch_size=st.sampled_from([None, 1, 3]),
    drop_last=st.booleans(),
    every=st.integers(0, 5),
    persistent=st.booleans(),
    stops=st.lists(st.integers(0, 8), min_size=1, max_size=2),
)
def test_a_stream_that_stops_anywhere_resumes_with_the_batches_that_were_not_delivered(
    stream, sizes, in_process, batch_size, drop_last, every, persistent, stops
):
    workers = 0 if in_process else len(sizes)

    def make():
        return DataLoader(
            stream(sizes),
            batch_size=batch_size,
            drop_last=drop_last and batch_size is not None,
            num_workers=workers,
            persistent_workers=persistent and workers > 0,
            snapshot_every_n_steps=every,
            collate_fn=as_is,
        )

    whole, loader, delivered = list(make()), make(), []
    for stop in stops:
        iterator = iter(loader)
        delivered += [batch for _, batch in zip(range(stop), iterator, strict=False)]
        state = _saved_and_loaded(loader)
        if state["finished"]:  # the next epoch would begin
            assert delivered == whole
            return
        loader = make()
        loader.load_state_dict(state)
    assert delivered + list(loader) == whole


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("stream", STREAMS)
def test_batches_delivered_out_of_order_are_not_delivered_again(stream, in_order):
    def make():
        return DataLoader(stream([9, 2]), num_workers=2, batch_size=2, in_order=in_order, collate_fn=as_is)

    loader = make()
    iterator = iter(loader)
    delivered = [next(iterator) for _ in range(3)]
    resumed = make()
    resumed.load_state_dict(_saved_and_loaded(loader))
    delivered += resumed
    assert sorted(chain(*delivered)) == list(range(11))


def test_samples_delivered_out_of_order_are_not_delivered_again_of_a_map_style_dataset():
    def make():
        return DataLoader(CountingDataset(20), num_workers=2, in_order=False, collate_fn=as_is)

    loader = make()
    iterator = iter(loader)
    delivered = [next(iterator) for _ in range(7)]
    resumed = make()
    resumed.load_state_dict(_saved_and_loaded(loader))
    delivered += resumed
    assert sorted(index for [(index, _)] in delivered) == list(range(20))


def test_a_worker_that_has_ended_does_not_begin_again():
    def make():
        return DataLoader(WithState([1, 6]), num_workers=2, collate_fn=as_is)

    loader = make()
    iterator = iter(loader)
    delivered = [next(iterator) for _ in range(4)]  # worker 0 has ended, and its dataset's state is that of a new epoch
    resumed = make()
    resumed.load_state_dict(_saved_and_loaded(loader))
    assert list(chain(*delivered, *resumed)) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_go_on_with_the_epoch_after_the_one_that_was_saved(persistent):
    def make():
        return DataLoader(WithState([3, 4]), num_workers=2, persistent_workers=persistent, collate_fn=as_is)

    loader = make()
    epochs = [list(loader)]
    state = _saved_and_loaded(loader)
    epochs += [list(loader), list(loader)]
    resumed = make()
    resumed.load_state_dict(state)
    assert [list(resumed), list(resumed)] == epochs[1:]
    assert (epochs[0] != epochs[1]) == persistent  # workers that are started anew get the dataset as it was


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 3, None])
def test_the_order_and_the_next_one_are_those_of_the_run_that_was_not_stopped(workers, stop):
    def make():
        return DataLoader(CountingDataset(10), shuffle=True, num_workers=workers, collate_fn=as_is)

    torch.manual_seed(5)
    loader = make()
    iterator = iter(loader)
    before = [next(iterator) for _ in range(stop)] if stop is not None else list(iterator)
    state = _saved_and_loaded(loader)
    rest, following = list(iterator), list(loader)
    torch.manual_seed(99)
    resumed = make()
    resumed.load_state_dict(state)
    if stop is not None:
        assert list(resumed) == rest
        assert len(before) + len(rest) == 10
    assert [batch[0][0] for batch in resumed] == [batch[0][0] for batch in following]


def test_resuming_leaves_torchs_global_generator_as_it_is():
    loader = DataLoader(Numbers(10), shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    resumed = DataLoader(Numbers(10), shuffle=True)
    resumed.load_state_dict(state)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    list(resumed)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_generator_of_the_user_continues_as_in_the_run_that_was_not_stopped():
    def make(seed):
        generator = torch.Generator().manual_seed(seed)
        return generator, DataLoader(Numbers(10), shuffle=True, generator=generator)

    generator, loader = make(4)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    rest = [list(iterator), list(loader)]
    other_generator, resumed = make(7)
    resumed.load_state_dict(state)
    assert [list(resumed), list(resumed)] == rest
    assert torch.equal(other_generator.get_state(), generator.get_state())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("sampler", [EpochSamplerWithState, IteratorStateSampler])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_sampler_with_a_state_continues_in_its_epoch(workers, batch_size, sampler, every):
    def make():
        dataset = CountingDataset(10)
        return DataLoader(
            dataset,
            sampler=sampler(10),
            batch_size=batch_size,
            num_workers=workers,
            snapshot_every_n_steps=every,
            collate_fn=as_is,
        )

    loader = make()
    list(loader)  # the state of a later epoch shows whether the epoch is restored
    iterator = iter(loader)
    for stop in (0, 1):
        for _ in range(stop):
            next(iterator)
        state = _saved_and_loaded(loader)
        resumed = make()
        resumed.load_state_dict(state)
        next_of_resumed = next(iter(resumed))
        assert _indexes(next_of_resumed) == _indexes(next(iterator))
    list(iterator)
    resumed = make()
    resumed.load_state_dict(_saved_and_loaded(loader))
    assert [_indexes(batch) for batch in resumed] == [_indexes(batch) for batch in loader]


def _indexes(batch):
    return [index for index, _ in batch] if isinstance(batch, list) else [batch[0]]


@pytest.mark.parametrize("every", [0, 1, 4])
@pytest.mark.parametrize("stop", [0, 1, 6])
def test_each_worker_gets_back_the_state_of_its_copy_of_a_map_style_dataset(every, stop):
    def make():
        return DataLoader(
            CountingDataset(13), batch_size=2, num_workers=2, snapshot_every_n_steps=every, collate_fn=as_is
        )

    loader = make()
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = _saved_and_loaded(loader)
    resumed = make()
    resumed.load_state_dict(state)
    assert list(resumed) == list(iterator)


def test_a_state_taken_twice_after_loading_is_the_one_that_was_loaded():
    loader = DataLoader(WithState([5, 5]), num_workers=2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    resumed = DataLoader(WithState([5, 5]), num_workers=2)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    kept = iter(resumed)
    assert resumed.state_dict() == state
    del kept


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_does_not_change_while_the_loader_goes_on(workers):
    loader = DataLoader(LiveState(), num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    text = json.dumps(state)
    for _ in range(5):
        next(iterator)
    assert json.dumps(state) == text


class LiveState(torch.utils.data.IterableDataset):
    """Its state is its own list, which goes on growing."""

    def __init__(self):
        self.seen = []

    def __iter__(self):
        for number in range(100):
            self.seen.append(number)
            yield number

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_the_state_can_be_taken_after_the_iterator_and_its_workers_are_gone():
    loader = DataLoader(WithState([6, 6]), num_workers=2, collate_fn=as_is)
    for batch in loader:
        if batch == [1]:
            break
    gc.collect()
    assert multiprocessing.active_children() == []
    resumed = DataLoader(WithState([6, 6]), num_workers=2, collate_fn=as_is)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(chain(*resumed)) == [2, 3, 4, 5, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_random_order_without_a_state_is_repeated_from_the_workers_seeds_and_that_is_logged(workers, caplog):
    def make():
        return DataLoader(Shuffled([8, 8]), num_workers=workers, collate_fn=as_is)

    torch.manual_seed(1)
    loader = make()
    iterator = iter(loader)
    delivered = [next(iterator) for _ in range(5)]
    state = loader.state_dict()
    torch.manual_seed(2)
    resumed = make()
    resumed.load_state_dict(state)
    with caplog.at_level(logging.WARNING, "penstock.dataloader"):
        delivered += resumed
    assert sorted(chain(*delivered)) == list(range(16))
    assert "makes 5 batches once more" in caplog.text


@pytest.mark.parametrize(("saved_with", "loaded_with"), [(0, 2), (2, 0), (2, 1)])
def test_another_number_of_workers_is_refused_by_a_message_that_names_both(saved_with, loaded_with):
    loader = DataLoader(WithState([4, 4]), num_workers=saved_with)
    next(iter(loader))
    resumed = DataLoader(WithState([4, 4]), num_workers=loaded_with)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(SettingError, match=f"num_workers={saved_with}, this loader has num_workers={loaded_with}"):
        iter(resumed)


def test_a_sampler_that_is_shorter_than_the_saved_position_is_refused():
    loader = DataLoader(Numbers(9))
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    resumed = DataLoader(Numbers(4))
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(SettingError, match="gives 4 indexes; the state was saved after 6"):
        iter(resumed)


def test_a_state_of_a_loader_with_a_generator_is_refused_without_one():
    loader = DataLoader(Numbers(9), generator=torch.Generator())
    next(iter(loader))
    resumed = DataLoader(Numbers(9))
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(SettingError, match="saved with 1 random generators, this loader has 0"):
        iter(resumed)


def test_the_number_of_workers_need_not_be_that_of_shards():
    loader = DataLoader(Plain([3, 0, 4]), num_workers=0, batch_size=None)
    assert list(loader) == list(range(7))
