"""Every command that takes a path of a shard takes a URL as well."""

import json

import pytest
from typer.testing import CliRunner

from penstock.bench.fields import parse_fields
from penstock.bench.workload import make_workload
from penstock.cli.main import make_app
from penstock.probe.storage import probe_storage
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources
from penstock.shards.scan import scan_shard
from penstock.storage.paths import expand_shard_paths
from penstock.testing import REID, make_shards


@pytest.fixture
def remote(bucket, tmp_path):
    paths = make_shards(tmp_path / "reid", REID, samples=12, shards=2, scale=0.1)
    for path in paths:
        bucket.put(f"reid/{path.name}", path.read_bytes())
    return bucket.url("reid/")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        done = CliRunner().invoke(make_app(), [*arguments, "--json"], catch_exceptions=False)
        return done.exit_code, json.loads(done.stdout)

    return invoke


def test_ls_index_and_check(run, remote, bucket):
    code, listing = run("shards", "ls", remote)
    assert (code, listing["samples"]) == (0, 12)
    code, indexed = run("shards", "index", remote, "--rebuild")
    assert (code, indexed["built"], indexed["errors"]) == (0, 2, [])
    code, checked = run("shards", "check", remote, "--decode", "--num-workers", "1")
    assert (code, checked["flaws"]) == (0, [])
    assert {each["shard"] for each in checked["shards"]} == {bucket.url(f"reid/reid-00000{n}.tar") for n in (0, 1)}


def test_pack_reads_from_a_store_and_writes_a_folder(remote, tmp_path):
    options = PackOptions()
    plan = make_plan(list(find_pack_sources(remote, options)), options)
    list(pack(plan, tmp_path / "out", workers=1))
    assert sum(len(scan_shard(path)) for path in (tmp_path / "out").glob("*.tar")) == 12


def test_both_benchmarked_loaders_read_from_the_store(remote, tmp_path):
    from penstock.bench.torch_loader import PlainTars

    workload = make_workload(expand_shard_paths(remote), parse_fields(["image=.jpg:32"]), 2, 12, 2, tmp_path)
    assert len({sample["__key__"] for sample in PlainTars(workload)}) == 12
    assert all(shard.startswith(remote) for shard in workload.shards)


def test_doctor_measures_a_bucket(run, bucket, proxy):
    bucket.put("large/a.tar", bytes(12 << 20))
    proxy.slow_down(latency_s=0.002)
    # The command reuses this result: its own probe would take six seconds.
    probe_storage(bucket.url("large/"), sample_bytes=4096, budget_s=0.5)
    _, document = run("doctor", bucket.url("large/"), "--sample-bytes", "4096")
    assert document["storage"]["kind"] == "object store"
    assert document["curve"]["method"] == "requests"
    assert document["curve"]["open_stat"]["median_us"] > 2000
    assert document["curve"]["points"][0]["in_flight"] == 1
    assert {"kind", "sequential", "random", "acts like", "a request"} <= {row["name"] for row in document["rows"]}


def test_doctor_reports_a_missing_bucket(run, s3):
    code, document = run("doctor", "s3://no-such-bucket-here/x/")
    assert code == 1
    assert any(row["name"] == "measured" and row["value"] == "no" for row in document["rows"])


def test_doctor_reports_that_no_object_is_large_enough(run, remote):
    _, document = run("doctor", remote)
    assert any("no object has 4 MiB" in row["meaning"] for row in document["rows"])
