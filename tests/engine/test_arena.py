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
    assert [arena.take(1), arena.take(PAGE + 1), arena.take(0)] == [0, PAGE, 3 * PAGE]
    assert arena.used == 4 * PAGE


def test_the_size_is_rounded_up_to_pages():
    arena = Arena(PAGE + 1)
    assert arena.size == 2 * PAGE
    arena.close()


def test_no_room_is_none_and_changes_nothing(arena):
    assert arena.take(PAGES * PAGE + 1) is None
    assert arena.take(PAGES * PAGE) == 0
    assert arena.take(1) is None
    arena.give_back(0)
    assert arena.take(PAGES * PAGE) == 0


def test_giving_back_what_was_not_taken_is_an_error(arena):
    with pytest.raises(KeyError):
        arena.give_back(PAGE)


@given(
    st.lists(st.one_of(st.integers(0, 9 * PAGE), st.just("give back")), max_size=60), st.randoms(use_true_random=False)
)
def test_pieces_never_overlap_and_gaps_join_again(steps, random):
    with closing(Arena(PAGES * PAGE)) as arena:
        taken = take_and_give_back(arena, steps, random)
        assert arena.used == sum(max(PAGE, -(-length // PAGE) * PAGE) for length in taken.values())
        for start in taken:
            arena.give_back(start)
        assert arena.take(arena.size) == 0, "the gaps have not become one"


def take_and_give_back(arena, steps, random):
    taken = {}
    for step in steps:
        if step == "give back":
            if taken:
                start = random.choice(sorted(taken))
                arena.give_back(start)
                del taken[start]
            continue
        start = arena.take(step)
        if start is None:
            continue
        assert start % PAGE == 0
        assert 0 <= start <= start + step <= arena.size
        assert all(start + max(step, 1) <= other or other + max(length, 1) <= start for other, length in taken.items())
        taken[start] = step
    return taken
