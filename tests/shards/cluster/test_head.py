"""A head node that goes away, and one that comes back."""

import socket

import pytest

from penstock.errors import PenstockError
from penstock.shards.cluster import join as head
from penstock.shards.cluster.join import HeadNode
from penstock.testing import FakeClock


@pytest.fixture
def door():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def knocking(door, clock):
    return HeadNode("{}:{}".format(*door.getsockname()), clock)


def test_a_head_that_is_there_answers_however_long_nobody_asked(knocking, clock):
    assert knocking.answers()
    clock.advance(10 * head.HEAD_ABSENCE_LIMIT_S)
    assert knocking.answers()


def test_a_head_may_be_away_for_a_while(knocking, door, clock):
    address = door.getsockname()
    clock.advance(10 * head.HEAD_ABSENCE_LIMIT_S)
    door.close()
    assert not knocking.answers()
    clock.advance(head.HEAD_ABSENCE_LIMIT_S - 1)
    assert not knocking.answers()
    with socket.create_server(address):
        knocking.wait()
    assert not knocking.answers()  # from here on its patience begins anew


def test_a_head_that_stays_away_is_gone_and_the_error_says_what_to_do(knocking, door, clock):
    door.close()
    with pytest.raises(PenstockError, match=r"the head node of the Ray cluster, 127\.0\.0\.1:") as caught:
        knocking.wait()
    assert "what is finished is kept" in caught.value.advice
    assert clock.now() >= head.HEAD_ABSENCE_LIMIT_S
