from __future__ import annotations

import socket
import sys
import threading

import pytest

from penstock.cli import main
from penstock.errors import PenstockError, SettingError
from penstock.shards.cluster import join
from penstock.shards.cluster.join import HeadNode, join_cluster
from penstock.testing import SA1B, FakeClock, make_shards


def error_of_joining(address="auto"):
    with pytest.raises(SettingError) as caught, join_cluster(address):
        pass
    return caught.value


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    error = error_of_joining()
    assert error.reason == "Ray is not installed"
    assert "pip install 'penstock[ray]'" in error.advice


@pytest.mark.parametrize("address", ["nonsense", "6379", ":6379", "host:", "host:port", "host:-1", ""])
def test_a_malformed_address_is_refused(address):
    assert "is not the address" in error_of_joining(address).reason


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "http://127.0.0.1:8265"])
def test_the_urls_of_ray_client_and_dashboard_are_refused_and_the_advice_names_ray_auto(address):
    error = error_of_joining(address)
    assert address in error.reason
    assert "--ray auto" in error.advice


@pytest.fixture
def closed_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def test_a_closed_port_is_refused(closed_port):
    assert f"nothing answers at 127.0.0.1:{closed_port}" in error_of_joining(f"127.0.0.1:{closed_port}").reason


def test_a_port_number_out_of_range_is_refused():
    assert "nothing answers" in error_of_joining("127.0.0.1:99999999").reason


@pytest.mark.parametrize("greeting", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "closes", "http"])
def test_the_port_of_another_program_is_refused(greeting, monkeypatch):
    monkeypatch.setattr(join, "ADDRESS_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                if greeting is None:
                    refused.wait()
                else:
                    connection.sendall(greeting)

        refused = threading.Event()
        server_thread = threading.Thread(target=answer)
        server_thread.start()
        reason = error_of_joining(f"127.0.0.1:{server.getsockname()[1]}").reason
        refused.set()
        server_thread.join()
    assert "nothing answers" in reason if greeting is None else "is not a Ray cluster" in reason


def test_an_unknown_host_name_is_refused():
    assert "nothing answers" in error_of_joining("no-such-host.invalid:6379").reason


def test_auto_uses_ray_address_from_the_environment(monkeypatch, closed_port):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    assert f"127.0.0.1:{closed_port}" in error_of_joining("auto").reason


def test_an_error_of_ray_is_reported_by_its_first_line(monkeypatch, closed_port):
    class FakeRay:
        @staticmethod
        def is_initialized():
            return False

        @staticmethod
        def init(address, **settings):
            raise RuntimeError("Version mismatch: the cluster has 2.40\nand so on")

    monkeypatch.setitem(sys.modules, "ray", FakeRay)
    monkeypatch.setattr(join, "_check_reachable", lambda address: None)
    reason = error_of_joining("head:6379").reason
    assert reason == "cannot join the Ray cluster at head:6379: Version mismatch: the cluster has 2.40"


@pytest.mark.parametrize("command", [["pack", "src", "packed"], ["check", "src"], ["index", "src"]])
def test_a_command_with_a_malformed_address_fails_before_it_writes_anything(command, tmp_path, monkeypatch, capsys):
    [shard] = make_shards(tmp_path / "src", SA1B, samples=1, scale=0.05)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["penstock", "shards", *command, "--ray", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "'nonsense' is not the address of a Ray cluster" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [shard]


# -- the head node ---------------------------------------------------------------------------------------------------


@pytest.fixture
def head_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def head_node(head_server, clock):
    return HeadNode("{}:{}".format(*head_server.getsockname()), clock)


def test_a_running_head_node_is_reachable_however_long_it_was_not_checked(head_node, clock):
    assert head_node.is_reachable()
    clock.advance(10 * join.HEAD_ABSENCE_LIMIT_S)
    assert head_node.is_reachable()


def test_a_head_node_may_be_unreachable_for_less_than_the_limit(head_node, head_server, clock):
    address = head_server.getsockname()
    clock.advance(10 * join.HEAD_ABSENCE_LIMIT_S)
    head_server.close()
    assert not head_node.is_reachable()
    clock.advance(join.HEAD_ABSENCE_LIMIT_S - 1)
    assert not head_node.is_reachable()
    with socket.create_server(address):
        head_node.wait_until_reachable()
    assert not head_node.is_reachable()  # the time begins anew, so this does not raise


def test_a_head_node_unreachable_beyond_the_limit_is_an_error_with_advice(head_node, head_server, clock):
    head_server.close()
    with pytest.raises(PenstockError, match=r"the head node of the Ray cluster, 127\.0\.0\.1:") as caught:
        head_node.wait_until_reachable()
    assert "what is finished is kept" in caught.value.advice
    assert clock.now() >= join.HEAD_ABSENCE_LIMIT_S
