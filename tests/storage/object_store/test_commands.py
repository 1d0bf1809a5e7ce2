"""Commands take URLs where they take paths."""

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

    def go(*arguments):
        done = CliRunner().invoke(make_app(), [*arguments, "--json"], catch_exceptions=False)
        return done.exit_code, json.loads(done.stdout)

    return go


def test_ls_index_and_check(run, remote, bucket):
    code, listing = run("shards", "ls", remote)
    assert (code, listing["samples"]) == (0, 12)
    code, indexed = run("shards", "index", remote, "--rebuild")
    assert (code, indexed["built"], indexed["errors"]) == (0, 2, [])
    code, checked = run("shards", "check", remote, "--decode", "--workers", "1")
    assert (code, checked["flaws"]) == (0, [])
    assert {each["shard"] for each in checked["shards"]} == {bucket.url(f"reid/reid-00000{n}.tar") for n in (0, 1)}


def test_pack_reads_from_a_store_and_writes_a_folder(remote, tmp_path):
    options = PackOptions()
    plan = make_plan(list(find_pack_sources(remote, options)), options)
    list(pack(plan, tmp_path / "out", workers=1))
    assert sum(len(scan_shard(path)) for path in (tmp_path / "out").glob("*.tar")) == 12


def test_both_sides_of_a_race_read_from_the_store(remote, tmp_path):
    from penstock.bench.torch_loader import PlainTars

    course = make_workload(expand_shard_paths(remote), parse_fields(["image=.jpg:32"]), 2, 12, 2, tmp_path)
    assert len({sample["__key__"] for sample in PlainTars(course)}) == 12
    assert all(shard.startswith(remote) for shard in course.shards)


def test_doctor_measures_a_bucket(run, bucket, proxy):
    bucket.put("large/a.tar", bytes(12 << 20))
    proxy.slow_down(latency_s=0.002)
    probe_storage(
        bucket.url("large/"), sample_bytes=4096, budget_s=0.5
    )  # kept: the command's own would take six seconds
    _, said = run("doctor", bucket.url("large/"), "--sample-size", "4096")
    assert said["storage"]["kind"] == "object store"
    assert said["curve"]["method"] == "requests"
    assert said["curve"]["open_stat"]["median_us"] > 2000
    assert said["curve"]["points"][0]["in_flight"] == 1
    assert {"kind", "sequential", "random", "acts like", "a request"} <= {row["name"] for row in said["rows"]}


def test_doctor_tells_of_a_bucket_that_is_not_there(run, s3):
    code, said = run("doctor", "s3://no-such-bucket-here/x/")
    assert code == 1
    assert any(row["name"] == "measured" and row["value"] == "no" for row in said["rows"])


def test_doctor_says_when_there_is_nothing_large_enough(run, remote):
    _, said = run("doctor", remote)
    assert any("no object has 4 MiB" in row["meaning"] for row in said["rows"])
