"""The allocator of the arena."""

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.arena import PAGE, Arena

PAGES = 32


@pytest.fixture
def arena(leaves_nothing):
    arena = Arena(PAGES * PAGE)
    yield arena
    arena.close()


def test_a_piece_is_a_whole_number_of_pages_and_starts_on_one(arena):
    assert [arena.allocate(1), arena.allocate(PAGE + 1), arena.allocate(0)] == [0, PAGE, 3 * PAGE]
    assert arena.used_bytes == 4 * PAGE


def test_the_size_is_rounded_up_to_pages():
    arena = Arena(PAGE + 1)
    assert arena.size == 2 * PAGE
    arena.close()


def test_an_allocation_without_a_gap_returns_none_and_changes_nothing(arena):
    assert arena.allocate(PAGES * PAGE + 1) is None
    assert arena.allocate(PAGES * PAGE) == 0
    assert arena.allocate(1) is None
    arena.free(0)
    assert arena.allocate(PAGES * PAGE) == 0


def test_freeing_what_is_not_allocated_is_an_error(arena):
    with pytest.raises(KeyError):
        arena.free(PAGE)


@given(st.lists(st.one_of(st.integers(0, 9 * PAGE), st.just("free")), max_size=60), st.randoms(use_true_random=False))
def test_pieces_never_overlap_and_gaps_are_joined(steps, random):
    with closing(Arena(PAGES * PAGE)) as arena:
        allocated = allocate_and_free(arena, steps, random)
        assert arena.used_bytes == sum(max(PAGE, -(-length // PAGE) * PAGE) for length in allocated.values())
        for offset in allocated:
            arena.free(offset)
        assert arena.allocate(arena.size) == 0, "the gaps were not joined to one"


def allocate_and_free(arena, steps, random):
    allocated = {}
    for step in steps:
        if step == "free":
            if allocated:
                offset = random.choice(sorted(allocated))
                arena.free(offset)
                del allocated[offset]
            continue
        offset = arena.allocate(step)
        if offset is None:
            continue
        assert offset % PAGE == 0
        assert 0 <= offset <= offset + step <= arena.size
        end = offset + max(step, 1)
        assert all(end <= other or other + max(length, 1) <= offset for other, length in allocated.items())
        allocated[offset] = step
    return allocated
