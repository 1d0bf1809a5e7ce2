"""How the scheduler's thread is woken, and messages between it and worker processes."""

import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.ipc import Pipe, Poller, Wakeup

# -- wake-ups ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pipes():
    made = [os.pipe() for _ in range(3)]
    yield made
    for end in (end for pair in made for end in pair):
        try:
            os.close(end)
        except OSError:
            pass  # the test has closed it


def test_a_wakeup_is_readable_from_wake_until_clear():
    wakeup, poller = Wakeup(), Poller()
    assert poller.wait([wakeup.fileno()], 0) == []
    wakeup.wake()
    assert poller.wait([wakeup.fileno()], 10) == [wakeup.fileno()]
    wakeup.clear()
    assert poller.wait([wakeup.fileno()], 0) == []


def test_many_calls_of_wake_count_as_one_until_clear():
    wakeup, poller = Wakeup(), Poller()
    for _ in range(1000):
        wakeup.wake()
    assert os.read(wakeup.fileno(), 65536) == b"x"
    wakeup.clear()
    wakeup.wake()
    assert poller.wait([wakeup.fileno()], 10) == [wakeup.fileno()]


def test_only_the_given_descriptors_are_polled(pipes):
    (first, to_first), (second, to_second), _ = pipes
    poller = Poller()
    os.write(to_first, b"x")
    os.write(to_second, b"x")
    assert poller.wait([first], 10) == [first]
    assert poller.wait([second], 10) == [second]
    assert sorted(poller.wait([first, second], 10)) == sorted([first, second])


def test_a_pipe_closed_at_the_other_end_is_reported(pipes):
    reading, writing = pipes[0]
    os.close(writing)
    assert Poller().wait([reading], 10) == [reading]


def test_a_descriptor_that_has_become_another_pipe_is_polled_as_that(pipes):
    (first, _), (second, to_second), _ = pipes
    poller = Poller()
    assert poller.wait([first], 0) == []
    os.dup2(second, first)
    os.write(to_second, b"x")
    assert poller.wait([first], 10) == [first]


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ends():
    pair = socket.socketpair()
    pipes = [Pipe(end.detach()) for end in pair]
    yield pipes
    for pipe in pipes:
        pipe.close()


@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=20))
def test_messages_arrive_complete_and_in_order(messages):
    sender, receiver = map(Pipe, (end.detach() for end in socket.socketpair()))
    for message in messages:
        sender.send(message)
    received = []
    while len(received) < len(messages):
        received += receiver.receive()
    assert received == messages
    sender.close()
    receiver.close()


def test_all_available_messages_take_one_system_call(ends, monkeypatch):
    sender, receiver = ends
    for number in range(10):
        sender.send(b"%d" % number)
    calls = []
    real = os.read

    def read(fd, max_bytes):
        calls.append(fd)
        return real(fd, max_bytes)

    monkeypatch.setattr(os, "read", read)
    assert receiver.receive() == [b"%d" % number for number in range(10)]
    assert len(calls) == 1


def test_the_rest_of_an_incomplete_message_is_waited_for(ends):
    sender, receiver = ends
    message = (5).to_bytes(8, "little") + b"abcde"
    os.write(sender.fileno(), message + message[:3])
    assert receiver.receive() == [b"abcde"]
    later = threading.Timer(0.01, os.write, (sender.fileno(), message[3:]))
    later.start()
    assert receiver.receive() == [b"abcde"]
    later.join()


def test_a_message_larger_than_the_socket_holds_arrives(ends):
    sender, receiver = ends
    message = os.urandom(5 << 20)
    thread = threading.Thread(target=sender.send, args=(message,))
    thread.start()
    assert receiver.receive() == [message]
    thread.join()


def test_messages_sent_before_closing_are_received_and_then_the_end(ends):
    sender, receiver = ends
    sender.send(b"last")
    sender.close()
    assert receiver.receive() == [b"last"]
    with pytest.raises(EOFError):
        receiver.receive()


def test_closing_in_the_middle_of_a_message_is_an_end(ends):
    sender, receiver = ends
    os.write(sender.fileno(), (5).to_bytes(8, "little") + b"ab")
    sender.close()
    with pytest.raises(EOFError):
        receiver.receive()
