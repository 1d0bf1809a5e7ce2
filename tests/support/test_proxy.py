"""The faults of the proxy as a plain HTTP client sees them, in front of a small server that supports ranges."""

import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, IncompleteRead, RemoteDisconnected
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from urllib.parse import urlsplit

import pytest

from penstock.errors import SettingError
from penstock.testing import FakeClock
from tests.support.proxy import Cut, Drip, FaultProxy, Flip, Hang, Late, Status, WholeObject, WrongRange
from tests.support.proxy.throttle import Throttle

DATA = bytes(range(256)) * 1024


class Objects(BaseHTTPRequestHandler):
    """A server on which every path is the same object; PUT returns the body of the request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        body = DATA[int(span[1]) : int(span[2] or len(DATA)) + 1] if span else DATA
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {span[1]}-{int(span[1]) + len(body) - 1}/{len(DATA)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingMixIn, TCPServer):
    daemon_threads = False  # server_close waits for the connections' threads


@pytest.fixture(scope="module")
def server():
    with Server(("127.0.0.1", 0), Objects) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server):
    with FaultProxy(server) as proxy:
        yield proxy


def connect(proxy, timeout=20):
    return closing(HTTPConnection(urlsplit(proxy.url).netloc, timeout=timeout))


def get(proxy, path="/a", byte_range=None, method="GET", body=None):
    """Send one request on a new connection and return the status, the headers and the body of the response."""
    with connect(proxy) as connection:
        connection.request(method, path, body=body, headers={"Range": byte_range} if byte_range else {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()


# -- without faults -----------------------------------------------------------------------------------------------


def test_without_faults_responses_are_those_of_the_server(proxy):
    assert get(proxy)[::2] == (200, DATA)
    status, headers, body = get(proxy, byte_range="bytes=1000-1999")
    assert (status, headers["Content-Range"], body) == (206, f"bytes 1000-1999/{len(DATA)}", DATA[1000:2000])
    assert get(proxy, method="PUT", body=b"something new")[::2] == (200, b"something new")


def test_head_returns_the_size_without_a_body(proxy):
    status, headers, body = get(proxy, method="HEAD")
    assert (status, int(headers["Content-Length"]), body) == (200, len(DATA), b"")
    assert proxy.counts.bytes == 0


def test_a_connection_can_be_used_for_several_requests(proxy):
    with connect(proxy) as connection:
        for start in (0, 5, 9):
            connection.request("GET", "/a", headers={"Range": f"bytes={start}-{start}"})
            assert connection.getresponse().read() == DATA[start : start + 1]
    assert proxy.counts.most_in_flight == 1


def test_a_server_that_does_not_listen_is_a_bad_gateway():
    with closing(socket.create_server(("127.0.0.1", 0))) as closed_soon:
        port = closed_soon.getsockname()[1]
    with FaultProxy(f"http://127.0.0.1:{port}") as proxy:
        assert get(proxy)[0] == 502


@pytest.mark.parametrize("upstream", ["https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:1/folder"])
def test_other_addresses_than_that_of_a_plain_http_server_are_refused(upstream):
    with pytest.raises(SettingError, match="http://host:port"):
        FaultProxy(upstream)


def test_a_chunked_body_is_refused(proxy):
    with connect(proxy) as connection:
        connection.putrequest("PUT", "/a")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        assert connection.getresponse().status == 411


# -- each fault ----------------------------------------------------------------------------------------------------


def test_a_cut_comes_after_the_given_number_of_bytes(proxy):
    proxy.inject(Cut(after_bytes=100))
    with pytest.raises(IncompleteRead) as cut:
        get(proxy)
    assert cut.value.partial == DATA[:100]


def test_a_cut_can_come_before_the_status(proxy):
    proxy.inject(Cut(after_bytes=None))
    with pytest.raises(RemoteDisconnected):
        get(proxy)


def test_a_hanging_request_is_in_flight_until_the_client_gives_up(proxy):
    proxy.inject(Hang(after_bytes=10))
    with connect(proxy) as connection:
        connection.request("GET", "/a")
        response = connection.getresponse()
        assert response.read(10) == DATA[:10]
        assert proxy.counts.in_flight == 1
        response.close()
    assert proxy.wait_until(lambda counts: counts.in_flight == 0).requests == 1


def test_closing_the_proxy_ends_hanging_requests(server):
    with FaultProxy(server) as proxy, ThreadPoolExecutor(3) as clients:
        proxy.inject(Hang())
        hanging = [clients.submit(get, proxy) for _ in range(3)]
        proxy.wait_until(lambda counts: counts.in_flight == 3)
        proxy.close()
        assert all(isinstance(each.exception(), ConnectionError) for each in hanging)
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-proxy"]


def test_a_flipped_bit_is_at_the_same_offset_of_the_object_for_every_range(proxy):
    proxy.inject(Flip(at=1000))
    wrong = bytes([DATA[1000] ^ 1])
    assert get(proxy)[2] == DATA[:1000] + wrong + DATA[1001:]
    assert get(proxy, byte_range="bytes=1000-1001")[2] == wrong + DATA[1001:1002]
    assert get(proxy, byte_range="bytes=999-")[2][:2] == DATA[999:1000] + wrong
    assert get(proxy, byte_range="bytes=0-999")[2] == DATA[:1000]
    assert proxy.counts.faults == 3


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Status(500), b"InternalError"),
        (Status(503), b"SlowDown"),
        (Status(403), b"AccessDenied"),
        (Status(404), b"NoSuchKey"),
        (Status(400, "ExpiredToken"), b"ExpiredToken"),
    ],
)
def test_errors_have_the_status_and_the_code_of_an_s3_store(proxy, fault, code):
    proxy.inject(fault)
    status, _, body = get(proxy)
    assert status == fault.status
    assert b"<Code>" + code + b"</Code>" in body


def test_the_headers_of_a_wrong_range_are_those_of_the_bytes_sent(proxy):
    proxy.inject(WrongRange())
    status, headers, body = get(proxy, byte_range="bytes=1000-1999")
    assert (status, headers["Content-Range"], body) == (206, f"bytes 999-1998/{len(DATA)}", DATA[999:1999])
    assert get(proxy, byte_range="bytes=0-9")[2] == DATA[1:11]


def test_a_request_for_a_range_can_get_the_whole_object(proxy):
    proxy.inject(WholeObject(), times=1)
    get(proxy)  # has no range, so the fault does not apply
    status, headers, body = get(proxy, byte_range="bytes=5-9")
    assert (status, headers["Content-Range"], body) == (200, None, DATA)


def test_a_drip_delivers_the_whole_body(proxy):
    proxy.inject(Drip(piece_bytes=10, pause_s=0.0))
    assert get(proxy, byte_range="bytes=0-34")[2] == DATA[:35]


def test_a_drip_ends_when_the_client_gives_up(proxy):
    proxy.inject(Drip(piece_bytes=1, pause_s=0.001))
    with connect(proxy) as connection:
        connection.request("GET", "/a")
        response = connection.getresponse()
        assert response.read(3) == DATA[:3]
        response.close()
    assert proxy.wait_until(lambda counts: counts.in_flight == 0).bytes < len(DATA)


def test_closing_the_proxy_ends_delayed_requests(server):
    with FaultProxy(server) as proxy, ThreadPoolExecutor(2) as clients:
        proxy.inject(Late(3600.0), times=1)
        late_by_fault = clients.submit(get, proxy)
        proxy.wait_until(lambda counts: counts.in_flight == 1)
        proxy.slow_down(latency_s=3600.0)
        late_by_latency = clients.submit(get, proxy)
        proxy.wait_until(lambda counts: counts.in_flight == 2)
        proxy.close()
        assert isinstance(late_by_fault.exception(), ConnectionError)
        assert isinstance(late_by_latency.exception(), ConnectionError)


def test_a_late_response_is_complete(proxy):
    proxy.slow_down(latency_s=0.001, bytes_per_s=1e9)
    proxy.inject(Late(0.001))
    assert get(proxy)[2] == DATA


def test_all_connections_share_the_bandwidth():
    clock = FakeClock()
    throttle = Throttle(1000.0, clock)
    assert [throttle.delay_s(500) for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])
    clock.advance(1.0)
    assert throttle.delay_s(500) == pytest.approx(1.0)
    clock.advance(60.0)
    assert throttle.delay_s(500) == pytest.approx(0.5)  # bandwidth that was not used is lost


# -- rules and counts ----------------------------------------------------------------------------------------------


def test_a_fault_applies_to_the_requests_of_its_predicate_and_so_many_times(proxy):
    proxy.inject(Status(503), when=lambda request: request.path == "/b", times=2)
    assert [get(proxy, path)[0] for path in ("/a", "/b", "/b", "/b")] == [200, 503, 503, 200]
    assert proxy.counts.faults == 2


def test_every_first_attempt_at_a_range_can_fail(proxy):
    proxy.inject(Status(500), when=lambda request: request.attempt == 1)
    ranges = ["bytes=0-9", "bytes=10-19", "bytes=0-9", "bytes=10-19"]
    assert [get(proxy, byte_range=each)[0] for each in ranges] == [500, 500, 206, 206]


def test_the_first_fault_that_applies_and_is_not_used_up_is_taken(proxy):
    proxy.inject(Status(500), times=1)
    proxy.inject(Status(503), when=lambda request: request.number != 3)
    assert [get(proxy)[0] for _ in range(4)] == [500, 503, 200, 503]
    proxy.remove_faults()
    assert get(proxy)[0] == 200


def test_a_fault_that_is_injected_zero_times_is_refused(proxy):
    with pytest.raises(SettingError, match="0 times"):
        proxy.inject(Status(500), times=0)


@pytest.mark.parametrize("speed", [{"latency_s": -1.0}, {"bytes_per_s": 0.0}])
def test_impossible_speeds_are_refused(proxy, speed):
    with pytest.raises(SettingError):
        proxy.slow_down(**speed)


def test_requests_bytes_and_the_most_in_flight_are_counted(proxy):
    proxy.inject(Hang(), when=lambda request: request.path == "/hang")
    with ThreadPoolExecutor(4) as clients:
        for _ in range(4):
            clients.submit(get, proxy, "/hang")
        proxy.wait_until(lambda counts: counts.in_flight == 4)
        proxy.close()
    counts = proxy.counts
    assert (counts.requests, counts.bytes, counts.most_in_flight, counts.in_flight) == (4, 0, 4, 0)


def test_a_client_with_sequential_requests_has_one_in_flight(proxy):
    for _ in range(20):
        get(proxy, byte_range="bytes=0-99")
    assert (proxy.counts.requests, proxy.counts.bytes, proxy.counts.most_in_flight) == (20, 2000, 1)
    assert {(each.method, each.path, each.range) for each in proxy.requests} == {("GET", "/a", "bytes=0-99")}


def test_waiting_for_a_condition_ends_with_a_timeout(proxy):
    with pytest.raises(TimeoutError, match="requests=0"):
        proxy.wait_until(lambda counts: counts.requests > 0, timeout_s=0.01)
