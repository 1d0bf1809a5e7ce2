"""What the conductor's thread hears."""

import os

import pytest

from penstock.engine.ipc import Listener, Wakeup


@pytest.fixture
def pipes():
    made = [os.pipe() for _ in range(3)]
    yield made
    for end in (end for pair in made for end in pair):
        try:
            os.close(end)
        except OSError:
            pass  # the test has closed it


def test_a_ring_is_heard_until_it_is_hushed():
    bell, listener = Wakeup(), Listener()
    assert listener.wait([bell.fileno()], 0) == []
    bell.ring()
    assert listener.wait([bell.fileno()], 10) == [bell.fileno()]
    bell.hush()
    assert listener.wait([bell.fileno()], 0) == []


def test_many_rings_are_one_until_they_are_hushed_and_the_next_is_heard_again():
    bell, listener = Wakeup(), Listener()
    for _ in range(1000):
        bell.ring()
    assert os.read(bell.fileno(), 65536) == b"x"
    bell.hush()
    bell.ring()
    assert listener.wait([bell.fileno()], 10) == [bell.fileno()]


def test_only_those_that_are_asked_for_are_heard(pipes):
    (first, to_first), (second, to_second), _ = pipes
    listener = Listener()
    os.write(to_first, b"x")
    os.write(to_second, b"x")
    assert listener.wait([first], 10) == [first]
    assert listener.wait([second], 10) == [second]
    assert sorted(listener.wait([first, second], 10)) == sorted([first, second])


def test_a_pipe_closed_at_the_other_end_is_heard(pipes):
    reading, writing = pipes[0]
    os.close(writing)
    assert Listener().wait([reading], 10) == [reading]


def test_a_descriptor_that_has_become_another_pipe_is_heard_as_that(pipes):
    (first, _), (second, to_second), _ = pipes
    listener = Listener()
    assert listener.wait([first], 0) == []
    os.dup2(second, first)
    os.write(to_second, b"x")
    assert listener.wait([first], 10) == [first]
