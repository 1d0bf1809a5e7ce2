"""Random numbers that follow the sample, not the worker that happens to make it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # odd, and nothing else in common
_WORD = (1 << 64) - 1


def sample_rng(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """A sample's own dice, to be handed to a transform: the same whichever worker throws them."""
    return np.random.Generator(np.random.PCG64([seed, epoch, sample]))


def seed_global_rngs(seed: int, epoch: int, sample: int) -> None:
    """Seed the dice everybody shares: random's, numpy's and, where it is loaded, torch's."""
    word = sum(factor * number for factor, number in zip(_FACTORS, (seed, epoch, sample), strict=True)) & _WORD
    word = ((word ^ (word >> 31)) * _FACTORS[1]) & _WORD
    random.seed(word)
    np.random.seed(word >> 32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(word)


@contextmanager
def restore_global_rngs() -> Iterator[None]:
    """Whatever is thrown inside, the dice of this process lie as before afterwards."""
    ours, numpys = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    torchs = None if torch is None else torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
        if torch is not None:
            torch.default_generator.set_state(torchs)


def global_rngs(seed: int, epoch: int, samples: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """For each sample that many numbers between 0 and 1, of its own too, all samples at once."""
    with np.errstate(over="ignore"):
        words = samples.astype(np.uint64) * np.uint64(_FACTORS[2])
        for number, factor in ((seed, _FACTORS[0]), (epoch, _FACTORS[1])):
            words = _mixed(words ^ np.uint64(factor * (number + 1) & _WORD))
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_FACTORS[0])
        numbers = _mixed(words[:, None] + steps)
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit depends on every bit: splitmix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FACTORS[1])
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_FACTORS[2])
    return words ^ (words >> np.uint64(31))
