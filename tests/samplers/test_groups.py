"""Groups of one identity, and batches of groups."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.samplers.groups import Grouping, assign_groups, make_members, max_batches

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def grouping(sizes, instances, ensured=None):
    identities = np.repeat(np.arange(len(sizes)), sizes)
    return Grouping(make_members(identities, np.zeros_like(identities), ensured), instances)


def owners(sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


@given(SIZES, st.integers(1, 6), st.integers(0, 99))
def test_groups_are_of_one_identity_and_samples_repeat_only_if_there_are_too_few(sizes, instances, seed):
    made = grouping(sizes, instances)
    groups = made.draw(np.random.default_rng(seed))
    assert made.counts.tolist() == [max(1, size // instances) for size in sizes]
    owner_numbers = owners(sizes)[groups]
    assert (owner_numbers == owner_numbers[:, :1]).all()
    times = Counter(groups.ravel().tolist())
    for sample, count in times.items():
        size = sizes[owners(sizes)[sample]]
        assert count == 1 if size >= instances else count in (instances // size, -(-instances // size))


@given(SIZES, st.integers(1, 6), st.integers(0, 99), st.data())
def test_every_group_begins_with_an_ensured_sample(sizes, instances, seed, data):
    flags = data.draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes)))
    ensured = np.array(flags)
    with_ensured = {owner for owner, flag in zip(owners(sizes), flags, strict=True) if flag}
    members = make_members(owners(sizes), np.zeros(sum(sizes), np.int64), ensured)
    assert set(members.identities.tolist()) == with_ensured
    if not with_ensured:
        return
    groups = Grouping(members, instances).draw(np.random.default_rng(seed))
    assert ensured[groups[:, 0]].all()
    times = Counter(groups[:, 1:].ravel().tolist())
    for sample, count in times.items():
        if sizes[owners(sizes)[sample]] >= instances:
            assert count == 1
    assert set(owners(sizes)[groups[:, 0]].tolist()) == with_ensured


def test_a_scarce_ensured_sample_begins_all_groups_of_its_identity():
    ensured = np.array([True] + [False] * 12)
    groups = grouping([13], 4, ensured).draw(np.random.default_rng(0))
    assert groups[:, 0].tolist() == [0, 0, 0, 0]
    assert sorted(groups[:, 1:].ravel().tolist()) == list(range(1, 13))


def test_too_few_samples_are_repeated_in_turn():
    (group,) = grouping([3], 8).draw(np.random.default_rng(1)).tolist()
    assert group[:3] == group[3:6]
    assert group[6:] == group[:2]
    assert set(group) == {0, 1, 2}


def test_modalities_are_spread_evenly_over_the_groups_of_an_identity():
    identities, cells = np.zeros(40, np.int64), np.repeat([0, 1], 20)
    groups = Grouping(make_members(identities, cells, None), 4)
    rng = np.random.default_rng(0)
    mixed = [int((cells[group] == 0).sum()) for _ in range(50) for group in groups.draw(rng)]
    assert min(mixed) >= 1
    assert max(mixed) <= 3


@given(SIZES, st.integers(1, 5))
def test_max_batches_equals_an_exhaustive_search(groups, identities):
    counts = np.array(groups)
    possible = [n for n in range(counts.sum() + 1) if np.minimum(counts, n).sum() >= n * identities]
    assert max_batches(counts, identities) == max(possible)


@given(SIZES, st.integers(1, 5), st.integers(0, 99))
def test_no_batch_has_an_identity_twice_and_no_group_is_used_twice(sizes, identities, seed):
    made = grouping(sizes, 2)
    batches = max_batches(made.counts, identities)
    if not batches:
        assert len(sizes) < identities
        return
    rng = np.random.default_rng(seed)
    assigned = assign_groups(made, rng.permutation(len(sizes)), batches, identities, rng)
    assert assigned.shape == (batches, identities)
    assert len(np.unique(assigned)) == assigned.size
    owner_numbers = np.repeat(np.arange(len(sizes)), made.counts)[assigned]
    assert all(len(set(batch)) == identities for batch in owner_numbers.tolist())


def test_an_identity_is_combined_with_many_others():
    made = grouping([40] * 20, 4)
    rng = np.random.default_rng(0)
    owner_numbers = np.repeat(np.arange(20), made.counts)[assign_groups(made, rng.permutation(20), 50, 4, rng)]
    met = {other for batch in owner_numbers.tolist() if 0 in batch for other in batch} - {0}
    assert len(met) >= 10, "ten batches with three others each"


@pytest.mark.parametrize("identities", [1, 3])
def test_the_last_identities_of_the_order_are_left_over(identities):
    made = grouping([8, 8, 8, 8], 4)
    batches = max_batches(made.counts, identities)
    assigned = assign_groups(made, np.array([3, 1, 0, 2]), batches, identities, np.random.default_rng(0))
    left = set(range(8)) - set(assigned.ravel().tolist())
    assert left <= {4, 5}, "groups of identity 2"
    assert len(left) == 8 - batches * identities
