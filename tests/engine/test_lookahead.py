"""What is planned of an epoch, how much at a time, and when that is enough."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.engine_fakes import Numbers

from penstock.core.contracts import BatchRequest
from penstock.engine.scheduler import AT_ONCE, PLANNED, RequestLookahead


class Room:
    """Stands for the arena: remembers what is wanted, and is full when the test says so."""

    def __init__(self):
        self.wanted = []
        self.blocked = False

    def want(self, block):
        self.wanted.append(block)

    def pump(self):
        pass


@pytest.fixture
def begun():
    def begin(batches, *, one_worker=False, size=8):
        room = Room()
        agenda = RequestLookahead(Numbers(10_000), room)
        agenda.begin(
            BatchRequest(0, np.arange(at * size, (at + 1) * size), 0, number=at, one_worker=one_worker)
            for at in range(batches)
        )
        return SimpleNamespace(agenda=agenda, room=room)

    return begin


def test_a_few_are_planned_at_a_time_until_that_is_enough(begun):
    agenda = begun(200).agenda
    lengths = []
    while agenda.grows(PLANNED):
        agenda.plan(PLANNED)
        lengths.append(len(agenda))
    assert lengths == list(range(AT_ONCE, PLANNED + 1, AT_ONCE))
    assert agenda.enough


def test_no_more_is_planned_until_there_is_room_for_several(begun):
    agenda = begun(200).agenda
    while agenda.grows(PLANNED):
        agenda.plan(PLANNED)
    for taken in range(1, AT_ONCE + 1):
        agenda.take()
        agenda.plan(PLANNED)
        assert len(agenda) == (PLANNED if taken == AT_ONCE else PLANNED - taken)


def test_jobs_come_out_in_order_with_their_blocks_which_were_asked_for_by_place(begun):
    made = begun(2, size=20)
    made.agenda.plan(PLANNED)
    assert made.room.wanted == [0, 1, 2, 2, 3, 4]
    (first, blocks), (second, _) = made.agenda.take(), made.agenda.take()
    assert (first.number, second.number) == (0, 1)
    assert blocks.tolist() == [0] * 8 + [1] * 8 + [2] * 4


def test_a_full_arena_and_a_limit_end_the_planning(begun):
    made = begun(20)
    made.agenda.plan(1)
    assert len(made.agenda) == 1
    assert not made.agenda.grows(1)
    made.room.blocked = True
    made.agenda.plan(PLANNED)
    assert len(made.agenda) == 1
    assert not made.agenda.grows(PLANNED)


def test_it_is_over_when_the_last_job_has_been_taken(begun):
    agenda = begun(1, one_worker=True).agenda
    assert not agenda.over
    agenda.plan(PLANNED)
    assert agenda.one_worker
    assert not agenda.over
    agenda.take()
    assert agenda.over
    assert not agenda.one_worker


def test_another_epoch_drops_what_was_planned(begun):
    agenda = begun(20).agenda
    agenda.plan(PLANNED)
    agenda.begin(None)
    assert len(agenda) == 0
    assert agenda.over
