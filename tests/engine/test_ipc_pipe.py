"""Messages between the conductor and a worker process."""

import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.ipc import Pipe


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    pipes = Pipe(ours.detach()), Pipe(theirs.detach())
    yield pipes
    for pipe in pipes:
        pipe.close()


@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=20))
def test_messages_arrive_whole_and_in_order(messages):
    ours, theirs = map(Pipe, (end.detach() for end in socket.socketpair()))
    for message in messages:
        ours.send(message)
    came = []
    while len(came) < len(messages):
        came += theirs.receive()
    assert came == messages
    ours.close()
    theirs.close()


def test_all_that_has_come_takes_one_question_to_the_system(ends, monkeypatch):
    ours, theirs = ends
    for number in range(10):
        ours.send(b"%d" % number)
    asked = []
    real = os.read

    def read(fd, most):
        asked.append(fd)
        return real(fd, most)

    monkeypatch.setattr(os, "read", read)
    assert theirs.receive() == [b"%d" % number for number in range(10)]
    assert len(asked) == 1


def test_a_message_that_is_cut_is_waited_for(ends):
    ours, theirs = ends
    whole = (5).to_bytes(8, "little") + b"abcde"
    os.write(ours.fileno(), whole + whole[:3])
    assert theirs.receive() == [b"abcde"]
    later = threading.Timer(0.01, os.write, (ours.fileno(), whole[3:]))
    later.start()
    assert theirs.receive() == [b"abcde"]
    later.join()


def test_a_message_larger_than_the_socket_holds_arrives(ends):
    ours, theirs = ends
    message = os.urandom(5 << 20)
    sender = threading.Thread(target=ours.send, args=(message,))
    sender.start()
    assert theirs.receive() == [message]
    sender.join()


def test_what_came_before_the_end_is_received_and_then_the_end(ends):
    ours, theirs = ends
    ours.send(b"last")
    ours.close()
    assert theirs.receive() == [b"last"]
    with pytest.raises(EOFError):
        theirs.receive()


def test_an_end_in_the_middle_of_a_message_is_an_end(ends):
    ours, theirs = ends
    os.write(ours.fileno(), (5).to_bytes(8, "little") + b"ab")
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
