"""Probing a bucket keeps to limits of time and bytes, and writes nothing into it."""

import json

import pytest
from typer.testing import CliRunner

from penstock.cli.main import make_app
from penstock.errors import StorageError
from penstock.probe import storage as storage_probe
from penstock.probe import storage_files
from penstock.probe.results import read_probes
from penstock.probe.storage import SEQUENTIAL_BYTES, measure_store, storage_facts
from penstock.storage.object_store import listing
from penstock.storage.paths import is_shard_name
from penstock.testing.clock import FakeClock

LARGE = 5 * SEQUENTIAL_BYTES


@pytest.fixture
def large(bucket):
    bucket.put("large/a.tar", bytes(LARGE))
    return bucket.url("large/")


def test_probe_storage_measures_a_bucket_and_writes_a_readable_probe(large, bucket, proxy, tmp_path):
    proxy.slow_down(latency_s=0.001)
    arguments = ["probe", "storage", large, "--duration", "2", "--refresh", "--json"]
    done = CliRunner().invoke(make_app(), arguments, catch_exceptions=False)
    assert done.exit_code == 0
    result = json.loads(done.stdout)["storage"]
    assert (result["storage"]["kind"], result["curve"]["method"]) == ("object store", "requests")
    assert result["curve"]["open_stat"]["median_us"] > 1000
    assert bucket.keys() == ["large/a.tar"]  # no index was written
    (tmp_path / "probes.json").write_text(done.stdout)
    assert read_probes(tmp_path / "probes.json").curve.points[0].in_flight == 1


def test_the_table_reports_requests(large):
    done = CliRunner().invoke(make_app(), ["probe", "storage", large, "--duration", "1"], catch_exceptions=False)
    text = " ".join(done.stdout.split())
    assert "a request" in text
    assert "requests/s" in text
    assert "object store" in text


def test_a_probe_reads_no_more_than_its_byte_limit(large, proxy, monkeypatch):
    monkeypatch.setattr(storage_probe, "STORE_BYTES", 6 * SEQUENTIAL_BYTES)
    curve = measure_store(large, 256 << 10, 60.0, FakeClock())
    assert [point.in_flight for point in curve.points] == [1, 2, 4]  # there are five offsets for large reads
    assert proxy.counts.most_in_flight > 1
    assert (1 + 2 + 4) * SEQUENTIAL_BYTES < proxy.counts.bytes < 14 * SEQUENTIAL_BYTES  # without a bound, 30


def test_opening_objects_stops_when_its_time_is_over(monkeypatch):
    clock = FakeClock()

    class Slow:
        def __init__(self, path):
            clock.advance(1.0)
            self.size_bytes = int(path)

    monkeypatch.setattr(storage_files, "ProbedObject", Slow)
    objects, times_s = storage_files.open_objects(["1", "2", "9", "9", "9", "9"], 5, 4.0, clock.now)
    assert [each.size_bytes for each in objects] == [1, 2, 9, 9]
    assert times_s == [1.0] * 4
    objects, _ = storage_files.open_objects(["1", "2", "9", "9"], 5, 1.0, clock.now)
    assert [each.size_bytes for each in objects] == [1, 2, 9]
    with pytest.raises(StorageError, match="no object has"):
        storage_files.open_objects(["1", "2"], 5, 1.0, clock.now)


def test_a_listing_ends_when_enough_objects_are_found(bucket, monkeypatch):
    monkeypatch.setattr(listing, "PAGE_SIZE", 2)
    for number in range(5):
        bucket.put(f"many/{number}.tar", b"")
    assert len(listing.find_objects(bucket.url("many/"), is_shard_name)) == 5
    assert len(listing.find_objects(bucket.url("many/"), is_shard_name, enough=2)) == 2
    assert len(listing.find_objects(bucket.url("many/*.tar"), is_shard_name, enough=3)) == 4


def test_credentials_in_the_endpoint_are_not_shown(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hunter2@127.0.0.1:9000/?key=hunter3")
    assert storage_facts("s3://bucket/a.tar").source == "http://127.0.0.1:9000"
