"""Random generators seeded by the sample."""

import itertools
import random

import numpy as np
import torch

from penstock.data.decode.rng import restore_global_rngs, seed_global_rngs


def test_global_generators_are_seeded_by_seed_epoch_and_sample():
    def draw(*numbers):
        seed_global_rngs(*numbers)
        return random.random(), float(np.random.random()), float(torch.rand(()))

    with restore_global_rngs():
        draws = {numbers: draw(*numbers) for numbers in itertools.product((0, 1), repeat=3)}
        assert all(draw(*numbers) == values for numbers, values in draws.items())
    assert all(len(set(column)) == 8 for column in zip(*draws.values(), strict=True))


def test_the_state_of_global_generators_is_restored():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with restore_global_rngs():
        seed_global_rngs(1, 2, 3)
        assert random.getstate() != before[0]
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
