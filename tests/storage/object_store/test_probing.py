"""The storage probe on a bucket keeps to its limits of time and bytes, and writes no object."""

import json

import pytest
from typer.testing import CliRunner

from penstock.cli.main import make_app
from penstock.errors import StorageError
from penstock.probe import storage as probing
from penstock.probe import storage_files as probed
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


def test_the_command_measures_a_bucket_and_its_json_is_a_probe(large, bucket, proxy, tmp_path):
    proxy.slow_down(latency_s=0.001)
    arguments = ["probe", "storage", large, "--seconds", "2", "--refresh", "--json"]
    done = CliRunner().invoke(make_app(), arguments, catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads(done.stdout)["storage"]
    assert (found["storage"]["kind"], found["curve"]["method"]) == ("object store", "requests")
    assert found["curve"]["open_stat"]["median_us"] > 1000
    assert bucket.keys() == ["large/a.tar"]  # no index either
    (tmp_path / "probes.json").write_text(done.stdout)
    assert read_probes(tmp_path / "probes.json").curve.points[0].in_flight == 1


def test_the_table_speaks_of_requests(large):
    done = CliRunner().invoke(make_app(), ["probe", "storage", large, "--seconds", "1"], catch_exceptions=False)
    text = " ".join(done.stdout.split())
    assert "a request" in text
    assert "requests/s" in text
    assert "object store" in text


def test_no_more_bytes_are_read_than_said(large, proxy, monkeypatch):
    monkeypatch.setattr(probing, "STORE_BYTES", 6 * SEQUENTIAL_BYTES)
    curve = measure_store(large, 256 << 10, 60.0, FakeClock())
    assert [point.in_flight for point in curve.points] == [1, 2, 4]  # there are five places for large reads
    assert proxy.counts.most_in_flight > 1
    assert (1 + 2 + 4) * SEQUENTIAL_BYTES < proxy.counts.bytes < 14 * SEQUENTIAL_BYTES  # without a bound, 30


def test_a_store_that_is_slow_to_tell_of_objects_is_asked_about_few(monkeypatch):
    clock = FakeClock()

    class Slow:
        def __init__(self, path):
            clock.advance(1.0)
            self.size_bytes = int(path)

    monkeypatch.setattr(probed, "ProbedObject", Slow)
    objects, times_s = probed.open_objects(["1", "2", "9", "9", "9", "9"], 5, 4.0, clock.now)
    assert [each.size_bytes for each in objects] == [1, 2, 9, 9]
    assert times_s == [1.0] * 4
    objects, _ = probed.open_objects(["1", "2", "9", "9"], 5, 1.0, clock.now)
    assert [each.size_bytes for each in objects] == [1, 2, 9]
    with pytest.raises(StorageError, match="no object has"):
        probed.open_objects(["1", "2"], 5, 1.0, clock.now)


def test_a_listing_ends_when_there_are_enough(bucket, monkeypatch):
    monkeypatch.setattr(listing, "PAGE_SIZE", 2)
    for number in range(5):
        bucket.put(f"many/{number}.tar", b"")
    assert len(listing.find_objects(bucket.url("many/"), is_shard_name)) == 5
    assert len(listing.find_objects(bucket.url("many/"), is_shard_name, enough=2)) == 2
    assert len(listing.find_objects(bucket.url("many/*.tar"), is_shard_name, enough=3)) == 4


def test_what_somebody_put_into_the_endpoint_is_not_shown(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hunter2@127.0.0.1:9000/?key=hunter3")
    assert storage_facts("s3://bucket/a.tar").source == "http://127.0.0.1:9000"
