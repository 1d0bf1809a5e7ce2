"""Random numbers seeded by the sample, so that they do not depend on the worker that makes it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Floats, Ids

_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Odd numbers without any other common structure."""
_WORD = (1 << 64) - 1
_OF_A_BATCH = 1
"""Seeds the generator of a batch in addition, so that it differs from the one of the batch's first sample."""


def sample_rng(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """Return a sample's own generator, to be passed to a transform: the same in any worker."""
    return np.random.Generator(np.random.PCG64([seed, epoch, sample]))


def batch_rng(seed: int, epoch: int, samples: Ids) -> np.random.Generator:
    """Return a generator for a batch of these samples, to be passed to a batch_transform.

    Its first sample seeds it, so that it does not depend on the process; no other batch of the epoch begins with it.
    """
    return np.random.Generator(np.random.PCG64([seed, epoch, *samples[:1].tolist(), _OF_A_BATCH]))


def seed_global_rngs(seed: int, epoch: int, sample: int) -> None:
    """Seed the global random generators: those of `random`, numpy and, where it is loaded, torch."""
    by_seed, by_epoch, by_sample = _FACTORS
    word = (by_seed * seed + by_epoch * epoch + by_sample * sample) & _WORD
    word = ((word ^ (word >> 31)) * by_epoch) & _WORD
    random.seed(word)
    np.random.seed(word >> 32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(word >> 1)  # torch.initial_seed() then fits into a tensor of int64


@contextmanager
def restore_global_rngs() -> Iterator[None]:
    """Restore the state of this process's global random generators at the end of the context."""
    random_state, numpy_state = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(random_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.default_generator.set_state(torch_state)


def uniform_draws(seed: int, epoch: int, samples: Ids, count: int) -> Floats:
    """Return `count` numbers between 0 and 1 for each sample, seeded by the sample, all samples at once."""
    with np.errstate(over="ignore"):
        words = samples.astype(np.uint64) * np.uint64(_FACTORS[2])
        for number, factor in ((seed, _FACTORS[0]), (epoch, _FACTORS[1])):
            words = _mix_bits(words ^ np.uint64(factor * (number + 1) & _WORD))
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_FACTORS[0])
        numbers = _mix_bits(words[:, None] + steps)
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix_bits(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix each word's bits by splitmix64, so that every bit depends on all of them."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FACTORS[1])
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_FACTORS[2])
    return words ^ (words >> np.uint64(31))
