"""Objects as files: reads at any offset return one version only, whatever the network does."""

import logging
import multiprocessing
import os
import pickle
import random
import subprocess
import sys

import pytest
from tests.support.proxy import Cut, Drip, Flip, Hang, Late, Status, WholeObject, WrongRange

from penstock.errors import SettingError, StorageError
from penstock.storage.object_store import client, listing, remote_file, request
from penstock.storage.object_store.io_thread import store_counts
from penstock.storage.object_store.remote_file import (
    HOP_BYTES,
    INITIAL_BYTES,
    WINDOW_BYTES,
    HeaderReadahead,
    RemoteFile,
    SequentialReadahead,
    read_object,
    write_object,
)
from penstock.storage.object_store.request import MIN_ANSWERS
from penstock.storage.object_store.retry import RetryPolicy
from penstock.storage.paths import expand_shard_paths
from penstock.storage.shard_cache.cache import ShardCache

DATA = random.Random(5).randbytes(700_000)
KEY = "data/a.tar"


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch):
    """Shorter times than users get, so that faults are detected within the test."""
    policy = RetryPolicy(budget_s=2.0, first_pause_s=0.01, longest_pause_s=0.02, stall_s=0.4)
    monkeypatch.setattr(remote_file, "DEFAULT_RETRY_POLICY", policy)
    monkeypatch.setattr(listing, "DEFAULT_RETRY_POLICY", policy)


@pytest.fixture
def url(bucket):
    bucket.put(KEY, DATA)
    return bucket.url(KEY)


def is_get(request):
    return request.method == "GET"


def test_an_object_is_read_at_any_offset(url):
    with RemoteFile(url) as file:
        assert (file.path, file.size) == (url, len(DATA))
        assert file.read_at(0, 16) == DATA[:16]
        assert file.read_at(123_456, 400_000) == DATA[123_456:523_456]
        assert file.read_at(len(DATA) - 10, 100) == DATA[-10:]
        assert file.read_at(len(DATA) + 5, 100) == b""


def test_a_long_read_is_split_into_concurrent_requests(url, proxy, monkeypatch):
    monkeypatch.setattr(remote_file, "REQUEST_BYTES", 100_000)
    proxy.slow_down(latency_s=0.05)
    assert RemoteFile(url).read_at(0, len(DATA)) == DATA
    assert proxy.counts.requests == 1 + 7
    assert proxy.counts.most_in_flight > 1


def test_a_stream_reads_from_start_to_end(url, monkeypatch):
    monkeypatch.setattr(remote_file, "STREAM_BYTES", 65_536)
    with RemoteFile(url).stream() as stream:
        assert stream.read(10) == DATA[:10]
        assert stream.tell() == 10  # glossary: allow
        assert stream.read() == DATA[10:]


def test_writing_and_reading_a_small_object_takes_one_request_each(bucket, proxy):
    write_object(bucket.url("x/y.pidx"), b"abc")
    assert read_object(bucket.url("x/y.pidx"), 10) == bucket.get("x/y.pidx") == b"abc"
    assert proxy.counts.requests == 2
    with pytest.raises(StorageError, match="has 3 bytes, more than 2"):
        read_object(bucket.url("x/y.pidx"), 2)


def test_a_large_object_gets_more_time_to_be_written(bucket, proxy):
    data = bytes(9 << 19)  # more than one request's size
    proxy.inject(Late(0.6), lambda request: request.method == "PUT")
    write_object(bucket.url("large.pidx"), data)
    assert bucket.get("large.pidx") == data
    assert [request.method for request in proxy.requests] == ["PUT"]


def test_an_object_larger_than_the_first_request_is_read(url, monkeypatch):
    monkeypatch.setattr(remote_file, "FIRST_REQUEST_BYTES", 1000)
    assert read_object(url, len(DATA)) == DATA


@pytest.mark.parametrize(
    "fault",
    [
        Status(500),
        Status(503),
        Status(429),
        Cut(after_bytes=None),
        Cut(after_bytes=0),
        Cut(after_bytes=300_000),
        Hang(),
        Hang(after_bytes=300_000),
        WholeObject(),
        WrongRange(),
        Drip(piece_bytes=1000, pause_s=0.05),
    ],
    ids=repr,
)
def test_a_transient_fault_is_overcome(url, proxy, fault):
    file = RemoteFile(url)
    proxy.inject(fault, is_get, times=2)
    assert file.read_at(1, len(DATA) - 1) == DATA[1:]
    assert proxy.counts.faults == 2


def test_a_broken_transfer_resumes_where_it_ended(url, proxy):
    file = RemoteFile(url)
    proxy.inject(Cut(after_bytes=300_000), is_get, times=2)
    assert file.read_at(0, len(DATA)) == DATA
    whole, by_chunks, rest = [request.span for request in proxy.requests if is_get(request)]
    assert whole == by_chunks == (0, len(DATA) - 1)
    assert rest is not None
    assert rest[0] >= request.CHUNK_BYTES


def test_a_slow_drip_of_bytes_counts_as_a_stall(url, proxy):
    file, before = RemoteFile(url), store_counts.stalls
    proxy.inject(Drip(piece_bytes=100, pause_s=0.01), is_get, times=2)
    assert file.read_at(0, len(DATA)) == DATA
    assert store_counts.stalls == before + 2


def test_on_a_slow_network_only_the_first_read_stalls(url, proxy, monkeypatch):
    monkeypatch.setattr(request, "CHUNK_BYTES", 64 << 10)
    monkeypatch.setattr(remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(first_pause_s=0.01, stall_s=0.6))
    file, length = RemoteFile(url), 320 << 10
    proxy.slow_down(bytes_per_s=470_000)
    before = store_counts.stalls
    for _ in range(2):
        assert file.read_at(0, length) == DATA[:length]
    assert store_counts.stalls == before + 1
    assert proxy.counts.requests == 1 + 2 + 1


@pytest.mark.parametrize("fault", [Status(503), Cut(after_bytes=None), WholeObject()], ids=repr)
def test_a_lasting_fault_is_an_error_with_shard_and_offset(url, proxy, fault, monkeypatch):
    monkeypatch.setattr(remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(budget_s=0.1, first_pause_s=0.01, stall_s=0.4))
    file = RemoteFile(url)
    proxy.inject(fault, is_get)
    with pytest.raises(StorageError, match="tries in") as caught:
        file.read_at(5, 100)
    assert caught.value.where() == {"shard": url, "offset": 5, "stage": "read"}


@pytest.fixture
def created_kinds(monkeypatch):
    """The kinds of clients that are created from now on."""
    kinds, make = [], client._create_store

    def spy(kind, *arguments, **settings):
        kinds.append(kind)
        return make(kind, *arguments, **settings)

    monkeypatch.setattr(client, "_create_store", spy)
    return kinds


def test_a_refused_client_is_created_anew_and_the_read_continues(url, proxy, monkeypatch, created_kinds):
    monkeypatch.setattr(client, "MIN_RENEWAL_AGE_S", 0.0)
    file, before = RemoteFile(url), store_counts.renewals
    created_kinds.clear()
    proxy.inject(Status(403), is_get, times=1)
    assert file.read_at(0, 100) == DATA[:100]
    assert store_counts.renewals == before + 1
    assert created_kinds == ["S3Store"]


def test_a_client_is_not_created_anew_while_its_settings_are_unchanged(url, proxy, monkeypatch, created_kinds):
    file = RemoteFile(url)
    created_kinds.clear()
    proxy.inject(Status(403), lambda request: request.method == "PUT")
    for number in range(3):
        with pytest.raises(StorageError, match="access was refused"):
            write_object(f"{url}.{number}", b"x")
    assert created_kinds == []
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    proxy.inject(Status(403), is_get, times=1)
    assert file.read_at(0, 100) == DATA[:100]
    assert created_kinds == ["S3Store"]


@pytest.mark.parametrize("fault", [Status(403), Status(400, "ExpiredToken")], ids=repr)
def test_a_lasting_refusal_is_an_error_after_two_requests(url, proxy, fault):
    file = RemoteFile(url)
    proxy.inject(fault, is_get)
    with pytest.raises(StorageError, match="access was refused"):
        file.read_at(0, 100)
    assert proxy.counts.faults == 2


def test_a_missing_object_is_an_error_with_its_url(bucket, proxy):
    with pytest.raises(StorageError, match="no such object") as caught:
        RemoteFile(bucket.url("none.tar"))
    assert caught.value.shard == bucket.url("none.tar")
    assert proxy.counts.requests == 1


def test_a_missing_bucket_is_reported_as_such(s3):
    with pytest.raises(StorageError, match="there is no such bucket"):
        read_object("s3://penstock-never-created_kinds/a.tar", 100)
    with pytest.raises(StorageError, match="404 NoSuchBucket"):
        expand_shard_paths("s3://penstock-never-created_kinds/d/")


def test_another_version_of_an_object_is_never_read(url, bucket):
    file = RemoteFile(url)
    assert file.read_at(0, 4) == DATA[:4]
    bucket.put(KEY, bytes(len(DATA)))
    with pytest.raises(StorageError, match="has changed since it was indexed"):
        file.read_at(0, 4)


def test_another_version_is_detected_even_if_the_store_ignores_the_condition(url, bucket, monkeypatch):
    monkeypatch.setattr(request.ObjectVersion, "condition", lambda _: {})
    file = RemoteFile(url)
    bucket.put(KEY, bytes(len(DATA)))
    with pytest.raises(StorageError, match="has changed since it was indexed"):
        file.read_at(0, 4)


def test_reads_beyond_the_end_are_refused(url):
    with pytest.raises(StorageError, match="ends before its index says"):
        RemoteFile(url).read_ranges([(len(DATA) - 5, memoryview(bytearray(10)))])


def test_a_slow_request_is_sent_twice(url, proxy):
    file = RemoteFile(url)
    for number in range(4 * MIN_ANSWERS):
        file.read_at(number, 1)
    hedges, won = store_counts.hedges, store_counts.hedges_won
    proxy.inject(Late(0.35), is_get, times=1)
    assert file.read_at(0, 100) == DATA[:100]
    assert store_counts.hedges == hedges + 1
    assert store_counts.hedges_won == won + 1


def test_the_slower_of_two_requests_is_cancelled_and_its_bytes_are_not_counted(url, proxy):
    file = RemoteFile(url)
    for number in range(4 * MIN_ANSWERS):
        file.read_at(number, 1)
    before, won = store_counts.bytes_read, store_counts.hedges_won
    proxy.inject(Hang(), is_get, times=1)
    assert file.read_at(0, 100) == DATA[:100]
    assert store_counts.hedges_won == won + 1
    assert store_counts.bytes_read == before + 100
    proxy.wait_until(lambda counts: counts.in_flight == 0)  # the connection was closed; otherwise it would hang


def test_header_readahead_hops_over_long_members(url, proxy):
    walk = HeaderReadahead(RemoteFile(url))
    for offset in range(0, len(DATA), 100_000):
        assert walk.read_at(offset, 512) == DATA[offset : offset + 512]
    assert proxy.counts.requests == 1 + 7
    assert proxy.counts.bytes <= INITIAL_BYTES + 7 * HOP_BYTES


def test_header_readahead_reads_through_short_members(url, proxy):
    walk = HeaderReadahead(RemoteFile(url))
    for offset in range(0, len(DATA), 2048):
        assert walk.read_at(offset, 512) == DATA[offset : offset + 512]
    assert proxy.counts.requests == 1 + 1 + -(-(len(DATA) - INITIAL_BYTES) // WINDOW_BYTES)


def test_sequential_readahead_fetches_ever_larger_windows(url, proxy):
    reader = SequentialReadahead(RemoteFile(url))
    for offset in range(0, len(DATA), 5000):
        assert reader.read_at(offset, 5000) == DATA[offset : offset + 5000]
    assert proxy.counts.requests < 8


def test_jumps_fetch_no_more_than_requested(url, proxy):
    reader = SequentialReadahead(RemoteFile(url))
    for offset in (600_000, 10_000, 300_000):
        reader.read_at(offset, 100)
    assert proxy.counts.bytes == 300


def test_folders_globs_and_brace_ranges_are_expanded(bucket):
    for key in ("d/a-0.tar", "d/a-1.tar", "d/b.txt", "d/.hidden.tar", "d/e/c.tar", "d/e/c.tar.pidx", "x[1].tar"):
        bucket.put(key, b"x")
    url_of = bucket.url
    assert (
        expand_shard_paths(url_of("d/"))
        == expand_shard_paths(url_of("d"))
        == expand_shard_paths(url_of("d/a-{0..1}.tar"))
        == [url_of("d/a-0.tar"), url_of("d/a-1.tar")]
    )
    assert (
        expand_shard_paths(url_of("d/*"))
        == expand_shard_paths(url_of("d/a-?.tar"))
        == [url_of("d/a-0.tar"), url_of("d/a-1.tar")]
    )
    assert expand_shard_paths(url_of("d/**/*.tar")) == [url_of("d/a-0.tar"), url_of("d/a-1.tar"), url_of("d/e/c.tar")]
    assert expand_shard_paths(url_of("**")) == [
        url_of("d/a-0.tar"),
        url_of("d/a-1.tar"),
        url_of("d/e/c.tar"),
        url_of("x[1].tar"),
    ]
    assert expand_shard_paths(url_of("x[1].tar")) == [url_of("x[1].tar")]
    for nothing in ("d/*.zip", "none/", "d/a-[5-9].tar"):
        with pytest.raises(SettingError, match="no shard"):
            expand_shard_paths(url_of(nothing))


def test_a_listing_survives_transient_faults(bucket, proxy):
    bucket.put("d/a.tar", b"x")
    proxy.inject(Status(503), times=2)
    assert expand_shard_paths(bucket.url("d/")) == [bucket.url("d/a.tar")]


def test_a_web_server_serves_signed_addresses(url, bucket):
    address = f"{bucket.endpoint}/{bucket.name}/{KEY}"
    with pytest.raises(StorageError, match="access was refused"):
        read_object(address, 1 << 30)
    signed = f"{address}?X-Amz-Signature=abc"
    assert expand_shard_paths(signed) == [address]
    assert read_object(address, 1 << 30) == DATA
    with pytest.raises(SettingError, match="has no listing"):
        expand_shard_paths(f"{bucket.endpoint}/{bucket.name}/")
    with pytest.raises(StorageError, match="nothing can be written"):
        write_object(address, b"")


def test_the_query_of_a_signed_address_reaches_the_server(url, bucket, proxy):
    [address] = expand_shard_paths(f"{proxy.url}/{bucket.name}/{KEY}?X-Amz-Signature=x")
    assert read_object(address, 1 << 30) == DATA
    assert all(request.path.endswith("?X-Amz-Signature=x") for request in proxy.requests)


def test_no_secret_is_shown_pickled_or_logged(url, bucket, proxy, caplog, monkeypatch):
    monkeypatch.setattr(
        remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(budget_s=0.05, first_pause_s=0.01, stall_s=0.4)
    )
    caplog.set_level(logging.DEBUG)
    [signed] = expand_shard_paths(f"{proxy.url}/{bucket.name}/{KEY}?X-Amz-Signature=hunter2")
    seen = []
    for file in (RemoteFile(url), RemoteFile(signed)):
        seen += [repr(file), str(file), repr(pickle.dumps(file)), repr(vars(file))]
        for fault in (Status(503), Status(403), Status(400), Status(404), Hang()):
            proxy.inject(fault, is_get)
            with pytest.raises(StorageError) as caught:
                file.read_at(0, 100)
            proxy.remove_faults()
            seen += [str(caught.value), repr(caught.value), repr(pickle.dumps(caught.value))]
    text = "\n".join([*seen, *(record.getMessage() for record in caplog.records if record.name != "werkzeug")])
    for secret in ("hunter2", "not-to-be-seen-anywhere", "AKIAPENSTOCKTESTS"):
        assert secret not in text


def test_a_pickled_file_is_read_in_another_process(url):
    read = "import pickle, sys; sys.stdout.buffer.write(pickle.load(sys.stdin.buffer).read_at(0, 4))"
    sent = pickle.dumps(RemoteFile(url))
    done = subprocess.run([sys.executable, "-c", read], input=sent, capture_output=True, timeout=60, check=True)
    assert done.stdout == DATA[:4]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_forked_process_raises_an_error_with_the_reason(url):
    file = RemoteFile(url)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()

    def read():
        with pytest.raises(StorageError) as caught:
            file.read_at(0, 4)
        sender.send(str(caught.value))

    child = context.Process(target=read)
    child.start()
    assert receiver.poll(60)
    assert "before this process was forked" in receiver.recv()
    child.join()


def test_a_bit_flip_is_not_detected_without_checksums(url, proxy):
    file = RemoteFile(url)
    proxy.inject(Flip(at=50), is_get, times=1)
    assert file.read_at(0, 100) != DATA[:100]
    assert file.read_at(0, 100) == DATA[:100]


def test_a_url_is_copied_into_the_cache_like_a_file(url, bucket, tmp_path):
    cache = ShardCache(tmp_path / "fast", 10 * len(DATA))
    for from_cache in (1, 2):
        with cache.open(url) as shard:
            assert os.pread(shard.fd, len(DATA) + 1, 0) == DATA
            assert shard.from_cache
            assert shard.path.suffix == ".tar"
        assert cache.stats().hits == from_cache - 1
    bucket.put(KEY, DATA[::-1])
    with cache.open(url) as shard:
        assert os.pread(shard.fd, len(DATA) + 1, 0) == DATA[::-1]


def test_a_url_that_cannot_be_copied_is_an_error(url, tmp_path):
    with pytest.raises(StorageError, match="cannot be copied into the cache"):
        ShardCache(tmp_path / "fast", 100).open(url)
