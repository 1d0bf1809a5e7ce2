from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.testing import corrupt

DATA = bytes(range(10))


def test_each_named_corrupter_does_what_its_name_says():
    assert corrupt.truncate(DATA, 3) == b"\x00\x01\x02"
    assert corrupt.flip_bit(DATA, 1, bit=7) == b"\x00\x81" + DATA[2:]
    assert corrupt.overwrite(DATA, 8, b"ab") == DATA[:8] + b"ab"
    assert corrupt.delete(DATA, 2, 7) == b"\x00\x01\x09"
    assert corrupt.insert(DATA, 10, b"end") == DATA + b"end"


@pytest.mark.parametrize(
    "damage",
    [
        lambda: corrupt.truncate(DATA, 11),
        lambda: corrupt.truncate(DATA, -1),
        lambda: corrupt.flip_bit(DATA, 10),
        lambda: corrupt.flip_bit(DATA, 0, bit=8),
        lambda: corrupt.overwrite(DATA, 9, b"ab"),
        lambda: corrupt.delete(DATA, 5, 6),
        lambda: corrupt.insert(DATA, 11, b"x"),
        lambda: corrupt.insert(DATA, -1, b"x"),
    ],
)
def test_damage_outside_the_data_is_refused_not_moved(damage):
    with pytest.raises(SettingError):
        damage()


def test_mutate_is_the_same_for_the_same_seed_and_differs_for_another():
    data = random.Random(0).randbytes(2048)

    def run(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        return [corrupt.mutate(data, rng) for _ in range(50)]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_mutate_nearly_always_changes_the_data_and_takes_no_more_than_a_block_more():
    data = random.Random(0).randbytes(2048)
    rng = random.Random(3)
    mutants = [corrupt.mutate(data, rng) for _ in range(5000)]
    assert sum(mutant != data for mutant in mutants) > 4800
    assert max(map(len, mutants)) <= len(data) + 64


def test_mutate_makes_every_kind_of_mutation():
    data = b"0123456789" * 100
    rng = random.Random(4)
    mutants = [corrupt.mutate(data, rng) for _ in range(2000)]
    lengths = [len(mutant) - len(data) for mutant in mutants]
    assert min(lengths) < -64, "truncations"
    assert any(-64 <= change < 0 for change in lengths), "deleted blocks"
    assert any(0 < change <= 7 for change in lengths), "insertions"
    assert any(change > 7 for change in lengths), "duplicated blocks"
    assert any(len(mutant) == len(data) and mutant.isdigit() and mutant != data for mutant in mutants), "digits"


@given(st.binary(max_size=24), st.integers(0, 2**32))
def test_mutate_accepts_data_of_any_length(data, seed):
    assert isinstance(corrupt.mutate(data, random.Random(seed)), bytes)
