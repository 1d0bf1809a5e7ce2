"""A penstock.DataLoader resumes exactly where its state was saved."""

import io
import random

import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataLoader
from penstock.errors import SettingError
from tests.dataloader.samples import Numbers, Samples, same


def _numbers(batches):
    return [batch.tolist() for batch in batches]


class Draws(Numbers):
    def __getitem__(self, index):
        return index, random.random(), torch.rand(()).item()


@settings(max_examples=12)
@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 7),
    stop=st.integers(0, 12),
    seed=st.integers(0, 1000),
    workers=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    generator=st.booleans(),
    persistent=st.booleans(),
)
def test_a_stopped_epoch_resumes_with_the_same_batches_and_augmentation_in_any_process(
    length, batch_size, stop, seed, workers, generator, persistent
):
    def loader(count):
        own = torch.Generator().manual_seed(seed) if generator else None
        return DataLoader(
            Draws(length), batch_size, True, num_workers=count, generator=own, persistent_workers=persistent
        )

    torch.manual_seed(seed)
    whole = loader(workers[0])
    iterator, before = iter(whole), []
    for _ in range(min(stop, len(whole))):
        before.append(next(iterator))
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    rest = list(iterator)

    torch.manual_seed(seed + 1)
    random_states = torch.get_rng_state(), random.getstate()
    resumed = loader(workers[1])
    resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    found = list(resumed)
    if rest:
        assert same(found, rest)
        assert torch.equal(torch.get_rng_state(), random_states[0])  # the training's own draws are not disturbed
        assert random.getstate() == random_states[1]
        assert sorted(i for batch in (*before, *found) for i in batch[0].tolist()) == list(range(length))
    else:  # all batches were delivered, but the end was not reached: nothing is left of the epoch
        assert found == []
        assert sorted(i for batch in resumed for i in batch[0].tolist()) == list(range(length))


def test_a_state_saved_before_the_first_batch_gives_the_epoch_that_would_have_come():
    loader = DataLoader(Numbers(20), 4, shuffle=True, num_workers=1)
    state = loader.state_dict()
    expected = _numbers(loader)
    torch.rand(5)
    again = DataLoader(Numbers(20), 4, shuffle=True, num_workers=1)
    again.load_state_dict(state)
    assert _numbers(again) == expected


def test_the_epoch_after_a_resumed_one_is_the_one_that_would_have_come():
    torch.manual_seed(2)
    loader = DataLoader(Numbers(12), 3, True, num_workers=1, generator=torch.Generator().manual_seed(4))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = [_numbers(iterator), _numbers(loader)]
    again = DataLoader(Numbers(12), 3, True, num_workers=1, generator=torch.Generator())
    again.load_state_dict(state)
    assert [_numbers(again), _numbers(again)] == expected


def test_a_state_loaded_into_a_loader_that_was_used_takes_effect_at_its_next_epoch():
    for persistent in (False, True):
        loader = DataLoader(Numbers(12), 3, True, num_workers=1, persistent_workers=persistent)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = _numbers(iterator)
        loader.load_state_dict(state)
        assert loader.state_dict() is not None
        assert _numbers(loader) == rest
        assert len(_numbers(loader)) == 4


def test_a_state_with_in_order_false_has_every_sample_once():
    loader = DataLoader(Numbers(40), 2, True, num_workers=2, in_order=False)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(7)]
    state = loader.state_dict()
    del iterator
    again = DataLoader(Numbers(40), 2, True, num_workers=2, in_order=False)
    again.load_state_dict(state)
    assert sorted(torch.cat([*before, *again]).tolist()) == list(range(40))


class PythonSampler:
    """A sampler that shuffles by the global generator of `random`, as many users' do."""

    def __iter__(self):
        numbers = list(range(20))
        random.shuffle(numbers)
        return iter(numbers)

    def __len__(self):
        return 20


def test_an_order_drawn_from_a_global_generator_resumes():
    loader = DataLoader(Numbers(20), 2, sampler=PythonSampler(), num_workers=1)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(4)]
    state = loader.state_dict()
    random.seed(0)
    again = DataLoader(Numbers(20), 2, sampler=PythonSampler(), num_workers=1)
    again.load_state_dict(state)
    assert sorted(torch.cat([*before, *again]).tolist()) == list(range(20))


class GrowingSampler:
    """An epoch is as long as its number says."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(4 * (self.epoch + 1)))

    def __len__(self):
        return 4 * (self.epoch + 1)


def test_an_epoch_whose_length_depends_on_its_number_resumes():
    sampler = GrowingSampler()
    loader = DataLoader(Numbers(100), 2, sampler=sampler, num_workers=1)
    sampler.set_epoch(3)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(5)]
    again = DataLoader(Numbers(100), 2, sampler=GrowingSampler(), num_workers=1)
    again.load_state_dict(loader.state_dict())
    assert torch.cat([*before, *again]).tolist() == list(range(16))


class CountingSampler:
    """A sampler that counts on from epoch to epoch, and continues from its own state."""

    def __init__(self):
        self.first = self.drawn = 0

    def __iter__(self):
        while self.drawn < 10:
            self.drawn += 1
            yield self.first + self.drawn - 1
        self.first, self.drawn = self.first + 10, 0

    def state_dict(self):
        return {"first": self.first, "drawn": self.drawn}

    def load_state_dict(self, state):
        self.first, self.drawn = state["first"], state["drawn"]


def test_the_state_of_a_sampler_that_has_one_is_saved():
    loader = DataLoader(Numbers(100), 2, sampler=CountingSampler(), num_workers=1)
    list(loader)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(2)]
    again = DataLoader(Numbers(100), 2, sampler=CountingSampler(), num_workers=1)
    again.load_state_dict(loader.state_dict())
    assert torch.cat([*before, *again]).tolist() == list(range(10, 20))


def test_distributed_samplers_resume_their_epoch():
    def loader():
        sampler = torch.utils.data.DistributedSampler(Numbers(20), 2, 1, shuffle=True, seed=3)
        return DataLoader(Numbers(20), 2, sampler=sampler, num_workers=1), sampler

    first, sampler = loader()
    sampler.set_epoch(5)
    iterator = iter(first)
    next(iterator)
    state, rest = first.state_dict(), _numbers(iterator)
    again, _ = loader()
    again.load_state_dict(state)
    assert _numbers(again) == rest


def test_a_sampler_that_gives_another_order_is_an_error():
    loader = DataLoader(Numbers(20), 2, sampler=list(range(20)), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    again = DataLoader(Numbers(20), 2, sampler=list(range(1, 20)), num_workers=1)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(SettingError, match="does not repeat the epoch"):
        iter(again)


def test_a_sampler_that_can_be_iterated_once_is_warned_about():
    loader = DataLoader(Numbers(20), 2, sampler=iter(range(20)), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(UserWarning, match="only once"):
        loader.state_dict()


def test_the_state_of_a_dataset_that_has_one_is_saved():
    class Stateful(Numbers):
        scale = 1

        def __getitem__(self, index):
            return index * self.scale

        def state_dict(self):
            return {"scale": self.scale}

        def load_state_dict(self, state):
            self.scale = state["scale"]

    dataset = Stateful(8)
    dataset.scale = 3
    loader = DataLoader(dataset, 2, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    again = DataLoader(Stateful(8), 2, num_workers=1)
    again.load_state_dict(loader.state_dict())
    assert torch.cat(list(again)).tolist() == [6, 9, 12, 15, 18, 21]


def test_a_state_of_something_else_is_refused():
    with pytest.raises(SettingError, match="not a state"):
        DataLoader(Numbers(4), num_workers=1).load_state_dict({"epoch": 3})


def test_batches_after_an_error_are_not_lost_on_resuming():
    class Failing(Samples):
        def __getitem__(self, index):
            if index == 5:
                raise ValueError("bad")
            return index

    loader = DataLoader(Failing("int", 12), 2, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    with pytest.raises(ValueError, match="bad"):
        next(iterator)
    again = DataLoader(Numbers(12), 2, num_workers=1)
    again.load_state_dict(loader.state_dict())
    assert _numbers(again) == [[6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize("ended", [False, True])
def test_a_state_at_the_end_of_an_epoch_goes_on_with_the_generator_as_it_was_then(ended):
    def loader():
        return DataLoader(Draws(22), 4, True, num_workers=1, generator=torch.Generator().manual_seed(3))

    whole = loader()
    epochs = [list(whole) for _ in range(3)]
    stopped = loader()
    iterator = iter(stopped)
    for _ in range(6):
        next(iterator)
    if ended:
        assert next(iterator, None) is None
    state = stopped.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    if not ended:
        assert list(resumed) == []
    assert same(list(resumed), epochs[1])
    assert same(list(resumed), epochs[2])
