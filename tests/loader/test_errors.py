"""Bad samples and workers that die: each lost sample is reported."""

import json
import os
import signal
import sys
import tarfile
import time

import pytest
from tests.support.loader_helpers import keys_of

import penstock
from penstock.engine.workers import ProcessWorker
from penstock.errors import DecodeError, SampleError, WorkerCrash
from penstock.options import BLOCK_BYTES
from penstock.shards.index import save_index
from penstock.shards.pack.write import ShardWriter
from penstock.testing import REID, corrupt, make_shards, tar_bytes

SAMPLES = 24
FIELDS = {
    "image": penstock.Image(".jpg", size=8),
    "id": penstock.Label(".json", key="identity"),
    "meta": penstock.Json(".json"),
}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    (shard,) = make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, scale=0.05)
    with tarfile.open(shard) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar.getmembers()]


@pytest.fixture
def shard(tmp_path, members):
    """Write a shard in which the images of the samples with these numbers are damaged."""

    def make(*bad, copies=1):
        path = tmp_path / "reid.tar"
        damaged = [
            (f"{copy}{name}", corrupt.truncate(data, 40) if name.endswith(".jpg") and index // 2 in bad else data)
            for copy in range(copies)
            for index, (name, data) in enumerate(members)
        ]
        path.write_bytes(tar_bytes(damaged))
        return path

    return make


@pytest.fixture
def loader(make_loader):
    """Make loaders over a shard."""
    return lambda path, batch_size=8, fields=FIELDS, **settings: make_loader(path, fields, batch_size, **settings)


def key(members, number, copy=0):
    return f"{copy}{members[2 * number][0]}".removesuffix(".jpg")


# -- bad samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_raise_names_shard_member_and_offset(loader, shard, members, executor):
    path = shard(13)
    with tarfile.open(path) as tar:
        offset = tar.getmember(key(members, 13) + ".jpg").offset_data
    failing = loader(path, executor=executor)
    with pytest.raises(SampleError) as caught:
        keys_of(failing)
    error = caught.value
    assert (error.shard, error.member, error.offset) == (str(path), key(members, 13) + ".jpg", offset)
    assert failing.state_dict()["position"] == 8  # the batch with the bad sample was not delivered


def test_skip_makes_the_batch_smaller_and_counts_the_sample(loader, shard, members):
    skipping = loader(shard(9, 13), on_error="skip", max_bad_fraction=0.5)
    batches = list(skipping)
    assert [len(batch["image"]) for batch in batches] == [8, 6, 8]
    assert [len(batch[name]) for batch in batches for name in ("id", "meta", "__key__")] == [8] * 3 + [6] * 3 + [8] * 3
    assert keys_of(batches) == [key(members, number) for number in range(SAMPLES) if number not in (9, 13)]
    assert all(int(i) == m["identity"] for b in batches for i, m in zip(b["id"], b["meta"], strict=True))
    assert (skipping._delivery.delivered, skipping._delivery.bad) == (22, 2)


def test_replace_keeps_the_size_of_the_batch(loader, shard, members):
    batches = list(loader(shard(9, 15), on_error="replace", max_bad_fraction=0.5))
    assert [len(batch["image"]) for batch in batches] == [8, 8, 8]
    numbers = [8, 10, 10, 11, 12, 13, 14, 8]
    assert batches[1]["__key__"] == [key(members, number) for number in numbers]
    assert all((batches[1]["image"][a] == batches[1]["image"][b]).all() for a, b in ((1, 2), (7, 0)))


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_the_very_first_sample_may_be_bad(loader, shard, members, on_error):
    keys = keys_of(loader(shard(0), on_error=on_error, max_bad_fraction=0.5))
    assert set(keys) == {key(members, number) for number in range(1, SAMPLES)}


def test_a_batch_without_a_good_sample_is_left_out_or_repeats_an_earlier_sample(loader, shard, members):
    path = shard(8, 9, 10, 11)
    left_out = [batch["__key__"] for batch in loader(path, batch_size=4, on_error="skip", max_bad_fraction=0.5)]
    assert left_out == [[key(members, 4 * batch + number) for number in range(4)] for batch in (0, 1, 3, 4, 5)]
    batches = list(loader(path, batch_size=4, on_error="replace", max_bad_fraction=0.5))
    assert batches[2]["__key__"] == [key(members, 7)] * 4
    assert (batches[2]["image"] == batches[1]["image"][3]).all()


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_byte_that_changed_since_packing_is_found_and_its_part_is_named(loader, tmp_path, members, executor):
    path = tmp_path / "packed.tar"
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for (name, image), (_, metadata) in zip(members[::2], members[1::2], strict=True):
            writer.add(name.removesuffix(".jpg"), [(".jpg", image), (".json", metadata)])
        writer.finish()
    index = writer.index(str(path))
    save_index(index, path)
    part = index.sample(3).parts[1]
    data = bytearray(path.read_bytes())
    data[part.offset + data[part.offset :].index(b'"camera": ') + len('"camera": ')] ^= 1  # another digit
    path.write_bytes(data)
    os.utime(path, ns=(0, index.binding.mtime_ns))
    with pytest.raises(DecodeError, match="CRC32 does not match the index") as caught:
        keys_of(loader(path, executor=executor))
    assert (caught.value.member, caught.value.offset) == (index.keys[3] + ".json", part.offset)


def test_incomplete_samples_are_left_out_with_one_warning(loader, tmp_path, members, caplog):
    path = tmp_path / "halves.tar"
    path.write_bytes(tar_bytes([*members[:8], ("lone1.jpg", b"x"), ("lone2.json", b"{}")]))
    with caplog.at_level("WARNING", logger="penstock"):
        assert len(keys_of(loader(path, on_error="skip"))) == 4
    (warning,) = [record.getMessage() for record in caplog.records if "not whole" in record.getMessage()]
    assert warning.startswith("2 samples are not whole and are left out; the first: orphan part: sample has no .json")
    assert "lone1.jpg" in warning
    assert str(path) in warning


def test_a_bad_first_sample_is_raised_with_its_location(loader, shard, members):
    with pytest.raises(SampleError) as caught:
        keys_of(loader(shard(0)))
    assert caught.value.member == key(members, 0) + ".jpg"


def test_if_all_samples_are_bad_the_first_one_is_named(loader, shard, members):
    with pytest.raises(SampleError) as caught:
        keys_of(loader(shard(*range(SAMPLES)), on_error="skip", max_bad_fraction=1.0))
    assert caught.value.member == key(members, 0) + ".jpg"


def test_the_list_of_bad_samples_has_a_line_for_each(loader, shard, members, tmp_path):
    bad_samples = tmp_path / "bad.jsonl"
    path = shard(3, 20)
    keys_of(loader(path, on_error="skip", max_bad_fraction=0.5, bad_samples_path=str(bad_samples)))
    lines = [json.loads(line) for line in bad_samples.read_text().splitlines()]
    named = [(line["shard"], line["member"]) for line in lines]
    assert named == [(str(path), key(members, n) + ".jpg") for n in (3, 20)]
    assert all(line["reason"] and line["offset"] > 0 and line["stage"] for line in lines)


def test_more_bad_samples_than_allowed_end_the_epoch(loader, shard):
    failing = loader(shard(2, 5, copies=6), on_error="skip", max_bad_fraction=0.05)
    delivered = []
    with pytest.raises(SampleError, match=r"bad, more than the 5\.0% allowed") as caught:
        delivered.extend(batch["__key__"] for batch in failing)
    assert len(delivered) == 12
    assert "max_bad_fraction" in caught.value.advice


def test_a_transform_that_fails_is_a_bad_sample(loader, shard, members):
    def refuse_camera_4(sample, rng):
        if sample["meta"]["camera"] == 4:
            raise KeyError("camera 4")
        return sample

    keys = keys_of(loader(shard(), transform=refuse_camera_4, on_error="skip", max_bad_fraction=0.5))
    assert keys == [key(members, number) for number in range(SAMPLES) if "_c4" not in key(members, number)]
    with pytest.raises(SampleError, match="KeyError: 'camera 4'") as caught:
        keys_of(loader(shard(), transform=refuse_camera_4))
    assert (caught.value.stage, "_c4" in caught.value.member) == ("transform", True)


def test_a_transform_that_calls_exit_makes_only_its_sample_bad(loader, shard):
    transformed = []

    def transform(sample, _rng):
        transformed.append(sample)
        if len(transformed) == 6:
            raise SystemExit("enough")
        return sample

    tolerant = loader(shard(), num_workers=1, transform=transform, on_error="skip", max_bad_fraction=1.0)
    assert len(keys_of(tolerant)) == SAMPLES - 1


class ExitingDataset:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 5:
            raise SystemExit("enough")
        return index


def test_a_dataset_that_calls_exit_makes_only_its_sample_bad(make_loader):
    loader = make_loader(ExitingDataset(), None, num_workers=1, block_bytes=BLOCK_BYTES, on_error="skip")
    assert [number for batch in loader for number in batch.tolist()] == [n for n in range(16) if n != 5]


# -- workers that die ------------------------------------------------------------------------------------------

KILLER = """
import os, signal

def killer(sample, rng):
    if sample["meta"]["identity"] == 4 and sample["meta"]["camera"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample
"""


@pytest.fixture
def killer(tmp_path, monkeypatch):
    (tmp_path / "penstock_test_killer.py").write_text(KILLER)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("penstock_test_killer").killer
    del sys.modules["penstock_test_killer"]


def test_a_sample_that_kills_its_worker_is_the_only_one_lost(loader, shard, members, killer, tmp_path):
    bad_samples = tmp_path / "bad.jsonl"
    settings = {
        "executor": "process",
        "on_error": "skip",
        "max_bad_fraction": 0.5,
        "bad_samples_path": str(bad_samples),
    }
    keys = keys_of(loader(shard(), transform=killer, **settings))
    assert keys == [key(members, number) for number in range(SAMPLES) if number != 13]
    (line,) = [json.loads(line) for line in bad_samples.read_text().splitlines()]
    assert line["member"] == key(members, 13)
    assert "SIGKILL" in line["reason"]


def test_a_sample_that_kills_its_worker_is_named_when_errors_raise(loader, shard, members, killer):
    with pytest.raises(WorkerCrash, match="SIGKILL") as caught:
        keys_of(loader(shard(), transform=killer, executor="process"))
    assert caught.value.member == key(members, 13)


def test_no_sample_is_lost_if_a_worker_is_killed_from_outside(loader, shard, members):
    killed = loader(shard(copies=20), batch_size=2, executor="process")
    keys = []
    for number, batch in enumerate(killed):
        keys += batch["__key__"]
        if number == 1:
            os.kill(first_process(killed).pid, signal.SIGKILL)
    assert keys == [key(members, number, copy) for copy in range(20) for number in range(SAMPLES)]


def first_process(loader):
    """Return a worker process of a running loader; threads decode until the first one is ready."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for slot in tuple(loader._engine.scheduler.dispatch.workers):
            if isinstance(slot.worker, ProcessWorker) and slot.worker.ready:
                return slot.worker.process
        time.sleep(0.01)
    raise AssertionError("no worker process has started")
