"""The random state of a user's sampler, with which an epoch is resumed in the same order."""

import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import penstock
from penstock.errors import SettingError

LENGTH = 300
BATCH = 4


class WithGenerator:
    """A sampler that shuffles by a random generator of its own."""

    def __init__(self, rng):
        self.rng = rng

    def __len__(self):
        return LENGTH

    def __iter__(self):
        numbers = list(range(LENGTH))
        self.rng.shuffle(numbers)
        return iter(numbers)


class FromGlobal:
    """A sampler that shuffles by a function of the global generators when it is iterated over."""

    def __init__(self, shuffle):
        self.shuffle = shuffle

    def __iter__(self):
        numbers = list(range(LENGTH))
        self.shuffle(numbers)
        return iter(numbers)


class Stateful:
    """A sampler whose seed is in its own state."""

    def __init__(self, seed):
        self.seed = seed

    def __len__(self):
        return LENGTH

    def __iter__(self):
        order = np.random.default_rng(self.seed).permutation(LENGTH).tolist()
        self.seed += 1
        return iter(order)

    def state_dict(self):
        return {"seed": self.seed}

    def load_state_dict(self, state):
        self.seed = state["seed"]


class Growing:
    """A sampler with more samples in each epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 20 + 10 * self.epoch

    def __iter__(self):
        return iter(range(len(self)))


class DrawnSlowly:
    """A sampler that draws each index from a global generator when it is needed."""

    def __len__(self):
        return LENGTH

    def __iter__(self):
        left = list(range(LENGTH))
        while left:
            yield left.pop(random.randrange(len(left)))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


SAMPLERS = {
    "torch, bare": lambda seed: {"sampler": RandomSampler(range(LENGTH))},
    "torch, own": lambda seed: {"sampler": RandomSampler(range(LENGTH), generator=seeded(seed))},
    "torch, subset": lambda seed: {"sampler": SubsetRandomSampler(range(LENGTH))},
    "torch, weighted": lambda seed: {"sampler": WeightedRandomSampler([1.0] * LENGTH, LENGTH, replacement=False)},
    "torch, batches": lambda seed: {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH)), BATCH, False)},
    "torch, own in batches": lambda seed: {
        "batch_sampler": BatchSampler(RandomSampler(range(LENGTH), generator=seeded(seed)), BATCH, False)
    },
    "random, own": lambda seed: {"sampler": WithGenerator(random.Random(seed))},
    "numpy, own": lambda seed: {"sampler": WithGenerator(np.random.default_rng(seed))},
    "numpy, own legacy": lambda seed: {"sampler": WithGenerator(np.random.RandomState(seed))},
    "random, global": lambda seed: {"sampler": FromGlobal(random.shuffle)},
    "numpy, global": lambda seed: {"sampler": FromGlobal(np.random.shuffle)},
    "stateful": lambda seed: {"sampler": Stateful(seed)},
}


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw_as_a_training_does():
    return random.random(), np.random.rand(), torch.rand(1).item()


def loader_of(seed, name):
    settings = SAMPLERS[name](seed)
    if "sampler" in settings:
        settings["batch_size"] = BATCH
    return penstock.Loader(range(LENGTH), **settings, num_workers=0)


def through_json(state):
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resumed_epoch_has_every_sample_once_and_leaves_the_global_generators_alone(name):
    seed_all(1)
    with loader_of(1, name) as loader:
        list(loader)  # so that the epoch that is resumed is not the first one
        whole = []
        for number, batch in enumerate(loader):
            whole.append(batch.tolist())
            draw_as_a_training_does()
            if number == 4:
                state = through_json(loader.state_dict())
    seed_all(2)
    expected = draw_as_a_training_does()
    seed_all(2)
    with loader_of(2, name) as resumed:
        resumed.load_state_dict(state)
        iterator = iter(resumed)
        rest = [next(iterator).tolist()]
        assert draw_as_a_training_does() == expected
        again = through_json(resumed.state_dict())
        rest += [batch.tolist() for batch in iterator]
    assert rest == whole[5:]
    assert Counter(sum(whole[:5] + rest, [])) == Counter(range(LENGTH))  # noqa: RUF017
    with loader_of(3, name) as resumed:  # a state that was saved in a resumed epoch
        resumed.load_state_dict(again)
        assert [batch.tolist() for batch in resumed] == whole[6:]


@pytest.mark.parametrize("name", [name for name in SAMPLERS if "own" in name or name == "stateful"])
def test_between_epochs_the_state_has_what_the_next_epoch_depends_on(name):
    with loader_of(1, name) as loader:
        list(loader)
        state = through_json(loader.state_dict())
        following = [batch.tolist() for batch in loader]
    with loader_of(2, name) as resumed:
        resumed.load_state_dict(state)
        assert resumed.epoch == 1
        assert [batch.tolist() for batch in resumed] == following


def test_a_sampler_may_have_another_length_in_each_epoch():
    with penstock.Loader(range(100), batch_size=4, sampler=Growing(), num_workers=0) as loader:
        list(loader)
        list(loader)
        iterator = iter(loader)
        done = next(iterator).tolist() + next(iterator).tolist()
        state = through_json(loader.state_dict())
    with penstock.Loader(range(100), batch_size=4, sampler=Growing(), num_workers=0) as resumed:
        resumed.load_state_dict(state)
        rest = [number for batch in resumed for number in batch.tolist()]
    assert done + rest == list(range(40))


def test_a_sampler_whose_order_cannot_be_repeated_is_warned_about_once_and_only_if_a_state_is_saved(caplog):
    with penstock.Loader(range(LENGTH), batch_size=1, sampler=DrawnSlowly(), num_workers=0) as loader:
        list(loader)
        assert "global random generators" not in caplog.text
        loader.state_dict()
        loader.state_dict()
    assert caplog.text.count("DrawnSlowly draws from the global random generators") == 1


def test_samplers_that_can_be_repeated_are_not_warned_about(caplog):
    for name in SAMPLERS:
        with loader_of(1, name) as loader:
            for _ in loader:
                draw_as_a_training_does()
            loader.state_dict()
    assert "cannot be repeated" not in caplog.text


def test_a_state_that_is_not_one_of_the_generator_is_refused():
    with loader_of(1, "random, own") as loader:
        state = {**loader.state_dict(), "sampler_state": {"sampler.rng": [3, [1, 2], None]}}
        loader.load_state_dict(state)
        with pytest.raises(SettingError, match="the state of the sampler's Random in a checkpoint cannot be used"):
            list(loader)
