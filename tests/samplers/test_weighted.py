"""Weighted and class-balanced batches."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.samplers import BalancedSampler, MetadataTable, WeightedSampler


def drawn(sampler):
    return [sample for batch in sampler for sample in batch]


@given(st.lists(st.floats(0, 100), min_size=8, max_size=60).filter(lambda weights: sum(weights) > 1), st.integers(0, 9))
def test_each_sample_occurs_in_proportion_to_its_weight_up_to_one_draw(weights, seed):
    sampler = WeightedSampler(MetadataTable.of(number=range(len(weights))), weights, 4, seed=seed)
    times = Counter(drawn(sampler))
    total = len(sampler) * 4
    for sample, weight in enumerate(weights):
        assert abs(times[sample] - total * weight / sum(weights)) < 1 + 1e-6
        assert weight > 0 or not times[sample]


def test_an_epoch_is_as_long_as_the_dataset_rounded_up_to_whole_batches():
    sampler = WeightedSampler(MetadataTable.of(weight=[1.0] * 10), "weight", 4)
    assert [len(batch) for batch in sampler] == [4, 4, 4]


def test_weights_may_be_a_column_and_every_epoch_has_another_order():
    table = MetadataTable.of(weight=[1.0, 3.0] * 20)
    sampler = WeightedSampler(table, "weight", 8, seed=3)
    first, second = drawn(sampler), drawn(sampler)
    assert first != second
    assert first == drawn(WeightedSampler(table, [1.0, 3.0] * 20, 8, seed=3))


def test_ranks_divide_the_draws_of_an_epoch():
    table = MetadataTable.of(weight=[1.0, 2.0, 3.0, 4.0] * 8)
    ranks = [drawn(WeightedSampler(table, "weight", 4, rank=rank, world_size=2)) for rank in range(2)]
    assert Counter(ranks[0]) + Counter(ranks[1]) == Counter(drawn(WeightedSampler(table, "weight", 4)))


def test_classes_occur_equally_often_and_so_do_the_samples_of_each():
    labels = ["cat"] * 70 + ["dog"] * 25 + ["newt"] * 5
    sampler = BalancedSampler(MetadataTable.of(label=labels), 10)
    for _ in range(5):
        times = Counter(drawn(sampler))
        by_class = {name: [times[at] for at, label in enumerate(labels) if label == name] for name in set(labels)}
        assert sorted(sum(each) for each in by_class.values()) == [33, 33, 34]
        assert all(max(each) - min(each) <= 1 for each in by_class.values())
    assert str(sampler) == (
        "3 classes of 5 to 70 samples, each 33.3 times an epoch; 10 batches of 10 on each of 1 ranks"
    )


def test_a_state_can_be_resumed_and_one_of_other_weights_is_refused():
    table = MetadataTable.of(weight=[1.0, 3.0] * 20)
    sampler, other = (WeightedSampler(table, "weight", 8) for _ in range(2))
    whole = list(sampler)
    other.load_state_dict(sampler.state_dict(batches=2))
    assert list(other) == whole[2:]
    with pytest.raises(SettingError, match="state"):
        WeightedSampler(table, np.arange(40), 8).load_state_dict(sampler.state_dict())


@pytest.mark.parametrize(
    "weights", [[1.0], [0.0, 0.0, 0.0], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0], [1.0, float("inf"), 1.0]]
)
def test_invalid_weights_are_refused(weights):
    with pytest.raises(SettingError, match="weights"):
        WeightedSampler(MetadataTable.of(number=[1, 2, 3]), weights, 2)


def test_an_epoch_without_a_batch_is_refused():
    with pytest.raises(SettingError, match="no batch"):
        WeightedSampler(MetadataTable.of(weight=[1.0]), "weight", 4, rank=0, world_size=2)
