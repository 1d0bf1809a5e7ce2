"""Bad samples, dying workers, and every way a pass can end: nothing lost in silence, nothing left behind."""

import gc
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time

import psutil
import pytest
from tests.support.loader_helpers import keys_of

import penstock
from penstock.engine.workers import ProcessWorker
from penstock.errors import DecodeError, PenstockError, SampleError, WorkerCrash
from penstock.shards.index import save_index
from penstock.shards.pack.write import ShardWriter
from penstock.testing import REID, corrupt, make_shards, tar_bytes

SAMPLES = 24
FIELDS = {
    "image": penstock.Image(".jpg", size=8),
    "id": penstock.Label(".json", key="identity"),
    "meta": penstock.Json(".json"),
}
GONE_S = 2.0


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    (shard,) = make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, scale=0.05)
    with tarfile.open(shard) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar.getmembers()]


@pytest.fixture
def shard(tmp_path, members):
    """A shard in which the pictures of the samples of these numbers are damaged."""

    def make(*bad, copies=1):
        path = tmp_path / "reid.tar"
        damaged = [
            (f"{copy}{name}", corrupt.truncate(data, 40) if name.endswith(".jpg") and at // 2 in bad else data)
            for copy in range(copies)
            for at, (name, data) in enumerate(members)
        ]
        path.write_bytes(tar_bytes(damaged))
        return path

    return make


@pytest.fixture
def loader(make_loader):
    """Makes loaders over a shard."""
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
    assert failing.state_dict()["position"] == 8  # the batch with the bad one was not delivered


def test_skip_makes_the_batch_smaller_and_counts(loader, shard, members):
    skipping = loader(shard(9, 13), on_error="skip", max_bad_fraction=0.5)
    batches = list(skipping)
    assert [len(batch["image"]) for batch in batches] == [8, 6, 8]
    assert [len(batch[name]) for batch in batches for name in ("id", "meta", "__key__")] == [8] * 3 + [6] * 3 + [8] * 3
    assert keys_of(batches) == [key(members, number) for number in range(SAMPLES) if number not in (9, 13)]
    assert all(int(i) == m["identity"] for b in batches for i, m in zip(b["id"], b["meta"], strict=True))
    assert (skipping._delivery.delivered, skipping._delivery.bad) == (22, 2)


def test_replace_keeps_the_size(loader, shard, members):
    batches = list(loader(shard(9, 15), on_error="replace", max_bad_fraction=0.5))
    assert [len(batch["image"]) for batch in batches] == [8, 8, 8]
    numbers = [8, 10, 10, 11, 12, 13, 14, 8]
    assert batches[1]["__key__"] == [key(members, number) for number in numbers]
    assert all((batches[1]["image"][a] == batches[1]["image"][b]).all() for a, b in ((1, 2), (7, 0)))


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_the_very_first_sample_may_be_a_bad_one(loader, shard, members, on_error):
    keys = keys_of(loader(shard(0), on_error=on_error, max_bad_fraction=0.5))
    assert set(keys) == {key(members, number) for number in range(1, SAMPLES)}


def test_a_batch_of_bad_samples_only_ends_the_epoch_or_repeats_a_good_one(loader, shard, members):
    path = shard(8, 9, 10, 11)
    with pytest.raises(SampleError, match="all 4 samples of a batch are bad") as caught:
        keys_of(loader(path, batch_size=4, on_error="skip", max_bad_fraction=0.5))
    assert caught.value.member == key(members, 8) + ".jpg"
    batches = list(loader(path, batch_size=4, on_error="replace", max_bad_fraction=0.5))
    assert batches[2]["__key__"] == [key(members, 7)] * 4
    assert (batches[2]["image"] == batches[1]["image"][3]).all()


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_byte_that_changed_since_packing_is_found_and_its_part_named(loader, tmp_path, members, executor):
    path = tmp_path / "packed.tar"
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for (picture, pixels), (_, notes) in zip(members[::2], members[1::2], strict=True):
            writer.add(picture.removesuffix(".jpg"), [(".jpg", pixels), (".json", notes)])
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


def test_samples_that_are_not_whole_are_left_out_with_one_warning(loader, tmp_path, members, caplog):
    path = tmp_path / "halves.tar"
    path.write_bytes(tar_bytes([*members[:8], ("lone1.jpg", b"x"), ("lone2.json", b"{}")]))
    with caplog.at_level("WARNING", logger="penstock"):
        assert len(keys_of(loader(path, on_error="skip"))) == 4
    (warning,) = [record.getMessage() for record in caplog.records if "not whole" in record.getMessage()]
    assert warning.startswith("2 samples are not whole and are left out; the first: orphan part: sample has no .json")
    assert "lone1.jpg" in warning
    assert str(path) in warning


def test_a_bad_first_sample_raises_with_its_place(loader, shard, members):
    with pytest.raises(SampleError) as caught:
        keys_of(loader(shard(0)))
    assert caught.value.member == key(members, 0) + ".jpg"


def test_when_the_first_samples_are_all_bad_the_first_is_named(loader, shard, members):
    with pytest.raises(SampleError) as caught:
        keys_of(loader(shard(*range(SAMPLES)), on_error="skip", max_bad_fraction=1.0))
    assert caught.value.member == key(members, 0) + ".jpg"


def test_the_ledger_has_a_line_for_each_bad_sample(loader, shard, members, tmp_path):
    ledger = tmp_path / "bad.jsonl"
    path = shard(3, 20)
    keys_of(loader(path, on_error="skip", max_bad_fraction=0.5, bad_samples_path=str(ledger)))
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    named = [(line["shard"], line["member"]) for line in lines]
    assert named == [(str(path), key(members, n) + ".jpg") for n in (3, 20)]
    assert all(line["reason"] and line["offset"] > 0 and line["stage"] for line in lines)


def test_more_bad_samples_than_allowed_end_the_epoch(loader, shard):
    failing = loader(shard(2, 5, copies=6), on_error="skip", max_bad_fraction=0.05)
    seen = []
    with pytest.raises(SampleError, match=r"bad, more than the 5\.0% allowed") as caught:
        seen.extend(batch["__key__"] for batch in failing)
    assert len(seen) == 12
    assert "max_bad_fraction" in caught.value.advice


def test_a_transform_that_fails_is_a_bad_sample(loader, shard, members):
    def picky(sample, rng):
        if sample["meta"]["camera"] == 4:
            raise KeyError("camera 4")
        return sample

    keys = keys_of(loader(shard(), transform=picky, on_error="skip", max_bad_fraction=0.5))
    assert keys == [key(members, number) for number in range(SAMPLES) if "_c4" not in key(members, number)]
    with pytest.raises(SampleError, match="KeyError: 'camera 4'") as caught:
        keys_of(loader(shard(), transform=picky))
    assert (caught.value.stage, "_c4" in caught.value.member) == ("transform", True)


# -- dying workers ---------------------------------------------------------------------------------------------

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


def test_a_sample_that_kills_its_worker_costs_that_sample_only(loader, shard, members, killer, tmp_path):
    ledger = tmp_path / "bad.jsonl"
    settings = {"executor": "process", "on_error": "skip", "max_bad_fraction": 0.5, "bad_samples_path": str(ledger)}
    keys = keys_of(loader(shard(), transform=killer, **settings))
    assert keys == [key(members, number) for number in range(SAMPLES) if number != 13]
    (line,) = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert line["member"] == key(members, 13)
    assert "SIGKILL" in line["reason"]


def test_a_sample_that_kills_its_worker_is_named_when_errors_raise(loader, shard, members, killer):
    with pytest.raises(WorkerCrash, match="SIGKILL") as caught:
        keys_of(loader(shard(), transform=killer, executor="process"))
    assert caught.value.member == key(members, 13)


def test_a_worker_killed_from_outside_costs_nothing(loader, shard, members):
    killed = loader(shard(copies=20), batch_size=2, executor="process")
    keys = []
    for number, batch in enumerate(killed):
        keys += batch["__key__"]
        if number == 1:
            os.kill(first_process(killed).pid, signal.SIGKILL)
    assert keys == [key(members, number, copy) for copy in range(20) for number in range(SAMPLES)]


def first_process(loader):
    """A worker process of a running loader: threads stand in until the first of them has come."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for slot in tuple(loader._engine.scheduler.dispatch.workers):
            if isinstance(slot.worker, ProcessWorker) and slot.worker.ready:
                return slot.worker.process
        time.sleep(0.01)
    raise AssertionError("no worker process came")


# -- nothing is left -------------------------------------------------------------------------------------------


def held():
    """What this process has: children, threads, descriptors."""
    gc.collect()
    fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)}
    return {
        "children": {child.pid for child in psutil.Process().children(recursive=True)},
        "threads": {thread.ident for thread in threading.enumerate()},
        "fds": sorted(fds.items()),
    }


def _is_open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


def assert_gone(before):
    end = time.monotonic() + GONE_S
    while (now := held()) != before and time.monotonic() < end:
        time.sleep(0.01)
    assert now == before


def leave_by_break(loader):
    for _ in loader:
        break


def leave_by_exception(loader):
    def train():
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


def leave_by_closing(loader):
    keys_of(loader)
    loader.close()


def leave_by_forgetting_the_iterator(loader):
    passing = iter(loader)
    next(passing)
    del passing


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_exception, leave_by_closing, leave_by_forgetting_the_iterator]
)
def test_nothing_is_left_after_a_pass_was_left(shard, executor, leave):
    path = shard()
    penstock.Loader(path, FIELDS, 4)  # what is opened once for all is open now
    before = held()
    loader = penstock.Loader(
        path,
        FIELDS,
        4,
        engine=penstock.EngineOptions(executor=executor),
        num_workers=2,
        reading=penstock.ReadOptions(block_bytes=4096),
    )
    leave(loader)
    assert_gone(before)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_nothing_is_left_when_a_loader_is_garbage(shard, executor):
    path = shard()
    before = held()
    loader = penstock.Loader(
        path,
        FIELDS,
        4,
        engine=penstock.EngineOptions(executor=executor),
        num_workers=2,
        reading=penstock.ReadOptions(block_bytes=4096),
    )
    assert len(keys_of(loader)) == SAMPLES
    assert held() != before  # workers wait for the next epoch
    del loader
    assert_gone(before)


def test_nothing_is_left_after_a_bad_sample(shard):
    path = shard(13)
    before = held()
    loader = penstock.Loader(
        path,
        FIELDS,
        4,
        engine=penstock.EngineOptions(executor="process"),
        num_workers=2,
        reading=penstock.ReadOptions(block_bytes=4096),
    )
    with pytest.raises(PenstockError):
        keys_of(loader)
    assert_gone(before)


def test_batches_kept_after_closing_write_into_nobodys_file(shard, tmp_path):
    loader = penstock.Loader(
        shard(),
        FIELDS,
        4,
        engine=penstock.EngineOptions(executor="thread"),
        reading=penstock.ReadOptions(block_bytes=4096),
    )
    kept = list(loader)
    loader.close()
    files = [(tmp_path / f"mine-{number}").open("wb+") for number in range(32)]  # takes the descriptors set free
    kept.clear()
    gc.collect()
    assert [os.fstat(file.fileno()).st_size for file in files] == [0] * 32
    for file in files:
        file.close()


INTERRUPTED = """
import os, sys, threading, time
import psutil
import penstock

def left():
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(2)
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    open_files = [os.readlink(link) for link in links if os.path.lexists(link)]
    ours = [name for name in open_files if "penstock" in name or name.endswith(".tar")]
    return len(psutil.Process().children()), threading.active_count() - 1, ours

loader = penstock.Loader(sys.argv[1], {"image": penstock.Image(".jpg", size=8)}, 4, device="numpy", num_workers=2,
                         engine=penstock.EngineOptions(sys.argv[2]), reading=penstock.ReadOptions(block_bytes=4096))
try:
    for batch in loader:
        while sys.argv[2] == "process" and len(psutil.Process().children()) < 2:
            time.sleep(0.01)  # until then threads stand in
        print(*[child.pid for child in psutil.Process().children()], flush=True)
        sys.stdin.read()
except KeyboardInterrupt:
    del batch
    print(*left())
    sys.exit(7)
"""


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_ctrl_c_leaves_nothing(shard, tmp_path, executor):
    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, script, shard(), executor]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as training:
        workers = [int(pid) for pid in training.stdout.readline().split()]
        training.send_signal(signal.SIGINT)
        last = training.stdout.readline()
        assert training.wait(30) == 7
    assert last.strip() == "0 0 []"
    assert len(workers) == (2 if executor == "process" else 0)
    assert not any(map(runs, workers))


def test_workers_die_with_a_training_that_is_killed(shard, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, script, shard(), "process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as training:
        workers = [int(pid) for pid in training.stdout.readline().split()]
        training.kill()
        training.wait()
    end = time.monotonic() + 5 * GONE_S  # a loaded machine runs them late; what matters is that they go
    while any(map(runs, workers)) and time.monotonic() < end:
        time.sleep(0.01)
    assert (len(workers), [pid for pid in workers if runs(pid)]) == (2, [])


def runs(pid):
    """Orphans are reaped by whoever is process 1, when it likes: a zombie does not run any more."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
