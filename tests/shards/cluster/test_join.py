"""Ways in which there is no cluster to join: each said clearly, and soon."""

from __future__ import annotations

import socket
import sys
import threading

import pytest

from penstock.cli import main
from penstock.errors import PenstockError, SettingError
from penstock.shards.cluster import join
from penstock.shards.cluster import join as head
from penstock.shards.cluster.join import HeadNode, join_cluster
from penstock.testing import SA1B, FakeClock, make_shards


def refusal(address="auto"):
    with pytest.raises(SettingError) as caught, join_cluster(address):
        pass
    return caught.value


def test_without_ray_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    error = refusal()
    assert error.reason == "Ray is not installed"
    assert "pip install 'penstock[ray]'" in error.advice


@pytest.mark.parametrize("address", ["nonsense", "6379", ":6379", "host:", "host:port", "host:-1", ""])
def test_what_is_no_address_is_refused(address):
    assert "is not the address" in refusal(address).reason


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "http://127.0.0.1:8265"])
def test_doors_that_lead_only_part_of_the_way_are_refused_with_the_right_one(address):
    error = refusal(address)
    assert address in error.reason
    assert "--ray auto" in error.advice


@pytest.fixture
def closed_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def test_an_address_where_nobody_listens_is_refused(closed_port):
    assert f"nothing answers at 127.0.0.1:{closed_port}" in refusal(f"127.0.0.1:{closed_port}").reason


def test_a_port_that_cannot_be_is_refused():
    assert "nothing answers" in refusal("127.0.0.1:99999999").reason


@pytest.mark.parametrize("greeting", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "closes", "http"])
def test_a_port_that_is_somebody_elses_is_refused(greeting, monkeypatch):
    monkeypatch.setattr(join, "ADDRESS_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            taken, _ = server.accept()
            with taken:
                taken.recv(100)
                if greeting is None:
                    ended.wait()
                else:
                    taken.sendall(greeting)

        ended = threading.Event()
        other = threading.Thread(target=answer)
        other.start()
        reason = refusal(f"127.0.0.1:{server.getsockname()[1]}").reason
        ended.set()
        other.join()
    assert "nothing answers" in reason if greeting is None else "is no Ray cluster" in reason


def test_a_name_that_nobody_has_is_refused():
    assert "nothing answers" in refusal("no-such-host.invalid:6379").reason


def test_auto_means_what_the_environment_says(monkeypatch, closed_port):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    assert f"127.0.0.1:{closed_port}" in refusal("auto").reason


def test_the_reason_of_ray_is_told_in_one_line(monkeypatch, closed_port):
    """As when the port belongs to somebody else, or the versions differ: Ray knows, in many words."""

    class Ray:
        @staticmethod
        def is_initialized():
            return False

        @staticmethod
        def init(address, **settings):
            raise RuntimeError("Version mismatch: the cluster has 2.40\nand so on")

    monkeypatch.setitem(sys.modules, "ray", Ray)
    monkeypatch.setattr(join, "_check_reachable", lambda address: None)
    assert (
        refusal("head:6379").reason
        == "cannot join the Ray cluster at head:6379: Version mismatch: the cluster has 2.40"
    )


@pytest.mark.parametrize("command", [["pack", "src", "packed"], ["check", "src"], ["index", "src"]])
def test_a_command_with_a_wrong_address_has_done_nothing(command, tmp_path, monkeypatch, capsys):
    [shard] = make_shards(tmp_path / "src", SA1B, samples=1, scale=0.05)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["penstock", "shards", *command, "--ray", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "'nonsense' is not the address of a Ray cluster" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [shard]


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
    assert knocking.is_reachable()
    clock.advance(10 * head.HEAD_ABSENCE_LIMIT_S)
    assert knocking.is_reachable()


def test_a_head_may_be_away_for_a_while(knocking, door, clock):
    address = door.getsockname()
    clock.advance(10 * head.HEAD_ABSENCE_LIMIT_S)
    door.close()
    assert not knocking.is_reachable()
    clock.advance(head.HEAD_ABSENCE_LIMIT_S - 1)
    assert not knocking.is_reachable()
    with socket.create_server(address):
        knocking.wait_until_reachable()
    assert not knocking.is_reachable()  # from here on its patience begins anew


def test_a_head_that_stays_away_is_gone_and_the_error_says_what_to_do(knocking, door, clock):
    door.close()
    with pytest.raises(PenstockError, match=r"the head node of the Ray cluster, 127\.0\.0\.1:") as caught:
        knocking.wait_until_reachable()
    assert "what is finished is kept" in caught.value.advice
    assert clock.now() >= head.HEAD_ABSENCE_LIMIT_S
