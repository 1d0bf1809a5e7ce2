"""Large samples that are in the page cache already are read by the workers."""

import io
import os
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
import torch
from tests.support.loader_helpers import keys_of, loader_settings

import penstock
from penstock import Array
from penstock.data.read import block_source, page_cache_read
from penstock.errors import DecodeError, SampleError, StorageError
from penstock.shards.codecs.arrays import encode_npy
from penstock.shards.index import save_index
from penstock.shards.pack.write import ShardWriter
from penstock.testing import IMAGENET, SA1B, make_shards, sample_parts, tar_bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="needs preadv")

FIELDS = {
    "image": penstock.Image(".jpg", size=16),
    "features": Array("_features.npz", key="features"),
    "raw": Array(".raw.npy"),
    "name": penstock.Text(".txt"),
}
SAMPLES, SHARDS = 24, 3


def parts_of(number):
    raw = np.random.default_rng(number).random((3, 5), np.float32)
    own = {".raw.npy": encode_npy(raw), ".txt": f"sample {number}".encode()}
    return sample_parts(SA1B, number, scale=0.05) | own


def write(path, numbers, change=lambda number, parts: parts):
    members = [
        (f"{number:03d}{suffix}", data)
        for number in numbers
        for suffix, data in change(number, parts_of(number)).items()
    ]
    path.write_bytes(tar_bytes(members))
    return str(path)


@pytest.fixture
def shards(tmp_path):
    each = SAMPLES // SHARDS
    return [write(tmp_path / f"{shard}.tar", range(each * shard, each * (shard + 1))) for shard in range(SHARDS)]


@pytest.fixture
def cached(monkeypatch):
    """Let the page cache hold everything while `in_memory` is True, and let every sample count as large."""
    answers = {"in_memory": True}
    monkeypatch.setattr(block_source, "WORKER_READ_BYTES", 1)
    monkeypatch.setattr(page_cache_read, "is_cached", lambda _fd, _offset: answers["in_memory"])
    monkeypatch.setattr(page_cache_read, "identify_storage", lambda _path: pytest.fail("the page cache has the answer"))
    return answers


@pytest.fixture
def loader():
    made = []

    def make(shards, fields=FIELDS, batch_size=4, **settings):
        defaults = {"shuffle": True, "seed": 3, "executor": "thread", "num_workers": 2, "block_bytes": 4096}
        made.append(penstock.Loader(shards, fields, batch_size, **loader_settings(**(defaults | settings))))
        return made[-1]

    yield make
    for each in made:
        each.close()


def as_lists(batches):
    return [
        {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        for batch in batches
    ]


def wanted_bytes(keys):
    """Return the bytes of the parts that FIELDS reads, for samples with these keys."""
    suffixes = (".jpg", "_features.npz", ".raw.npy", ".txt")
    return sum(len(parts_of(int(key))[suffix]) for key in keys for suffix in suffixes)


def open_tars(folder):
    """Return the tar files that this process has open."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return [name for link in links if os.path.lexists(link) and (name := os.readlink(link)).startswith(str(folder))]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_workers_that_read_deliver_the_same_batches_and_no_reader_is_used(shards, loader, cached, executor):
    by_workers = loader(shards, executor=executor)
    found = as_lists(by_workers)
    assert by_workers.stats().engine.reads == 0
    assert by_workers.stats().engine.bytes_read == wanted_bytes(keys_of(found))
    by_readers = loader(shards, executor=executor, page_cache=False)
    assert as_lists(by_readers) == found
    assert by_readers.stats().engine.reads > 0
    assert sorted(keys_of(found)) == [f"{number:03d}" for number in range(SAMPLES)]


def test_a_transform_gets_the_same_values_from_workers_and_readers(shards, loader, cached):
    def transform(sample, rng):
        return {"raw": sample["raw"] * 2 + rng.random(), "image": sample["image"], "text": sample["name"]}

    by_workers, by_readers = (loader(shards, transform=transform, page_cache=cache) for cache in (True, False))
    assert as_lists(by_workers) == as_lists(by_readers)
    assert by_workers.stats().engine.reads == 0


def test_small_samples_and_those_not_in_memory_are_read_by_readers(shards, loader, cached, monkeypatch):
    monkeypatch.setattr(page_cache_read, "identify_storage", lambda _path: storage_facts(in_memory=False))
    cached["in_memory"] = False
    cold = loader(shards)
    assert len(list(cold)) == SAMPLES // 4
    assert cold.stats().engine.reads > 0
    cached["in_memory"] = True
    monkeypatch.setattr(block_source, "WORKER_READ_BYTES", 1 << 30)
    small = loader(shards)
    assert len(list(small)) == SAMPLES // 4
    assert small.stats().engine.reads > 0


def storage_facts(*, in_memory):
    kind = type("Kind", (), {"in_memory": in_memory})
    return type("Storage", (), {"kind": kind})


def test_files_of_a_memory_file_system_are_read_by_workers(shards, loader, cached, monkeypatch):
    cached["in_memory"] = False
    monkeypatch.setattr(page_cache_read, "identify_storage", lambda _path: storage_facts(in_memory=True))
    made = loader(shards)
    list(made)
    assert made.stats().engine.reads == 0


def test_who_reads_is_decided_for_each_epoch(shards, loader, cached, monkeypatch):
    monkeypatch.setattr(page_cache_read, "identify_storage", lambda _path: storage_facts(in_memory=False))
    cached["in_memory"] = False
    made = loader(shards)
    first = sorted(keys_of(made))
    reads = made.stats().engine.reads
    assert reads > 0
    cached["in_memory"] = True
    assert sorted(keys_of(made)) == first
    assert made.stats().engine.reads == reads


def test_an_epoch_that_workers_read_is_resumed_at_its_position(shards, loader, cached):
    whole = as_lists(loader(shards))
    first = loader(shards)
    assert as_lists(islice(first, 2)) == whole[:2]
    other = loader(shards)
    other.load_state_dict(first.state_dict())
    assert as_lists(other) == whole[2:]


def test_a_mixture_is_read_by_workers_too(shards, loader, cached):
    by_workers, by_readers = (
        loader({shards[0]: 1, shards[1]: 3}, page_cache=cache, max_samples=SAMPLES) for cache in (True, False)
    )
    found = as_lists(by_workers)
    assert found == as_lists(by_readers)
    assert by_workers.stats().engine.reads == 0
    assert by_workers.stats().engine.bytes_read == wanted_bytes(keys_of(found))


def test_each_device_of_the_shards_is_checked(shards, loader, cached, monkeypatch):
    class Disks:
        """Functions of os that report a device of its own for each shard."""

        preadv = os.preadv

        @staticmethod
        def fstat(fd):
            return os.stat_result((0, 0, hash(os.readlink(f"/proc/self/fd/{fd}")), *[0] * 7))

    cached["in_memory"] = False
    monkeypatch.setattr(page_cache_read, "os", Disks)
    monkeypatch.setattr(page_cache_read, "identify_storage", lambda path: storage_facts(in_memory=path == shards[0]))
    made = loader(shards)
    list(made)
    assert made.stats().engine.reads > 0


@pytest.mark.parametrize("page_cache", [True, False])
def test_a_shard_that_changes_between_two_epochs_ends_the_second_one(shards, loader, cached, page_cache):
    made = loader(shards, page_cache=page_cache, on_error="skip", max_bad_fraction=1.0)
    list(made)
    with open(shards[1], "rb+") as file:
        file.write(b"0")
    facts = os.stat(shards[1])
    os.utime(shards[1], ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    with pytest.raises(StorageError, match="has changed since it was indexed"):
        list(made)


@pytest.mark.parametrize("stopgaps", [True, False])
def test_no_file_stays_open_after_leaving_an_epoch(shards, loader, cached, tmp_path, stopgaps):
    made = loader(shards, executor="process" if stopgaps else "thread")
    for _ in made:
        assert len(open_tars(tmp_path)) <= SHARDS  # not for each thread
        break
    assert open_tars(tmp_path) == []


MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import penstock
from penstock.data.read import block_source, page_cache_read
block_source.WORKER_READ_BYTES, page_cache_read.is_cached = 1, lambda fd, offset: True
loader = penstock.Loader(sys.argv[1], {"label": penstock.Label(".cls")}, 10, shuffle=True, device="numpy",
                         num_workers=4,
                         engine=penstock.EngineOptions("thread"), reading=penstock.ReadOptions(num_readers=1))
print(sum(len(batch["label"]) for batch in loader), loader.stats().engine.reads)
"""


def test_more_shards_than_a_process_may_open_can_be_read_by_threads(tmp_path):
    make_shards(tmp_path, IMAGENET, samples=100, shards=100, scale=0.05)
    run = subprocess.run([sys.executable, "-c", MANY, f"{tmp_path}/*.tar"], capture_output=True, text=True, timeout=60)
    assert (run.stdout.strip(), run.returncode) == ("100 0", 0), run.stderr


def test_reading_the_order_does_not_decide_again_who_reads(shards, loader, cached, monkeypatch):
    made = loader(shards)
    monkeypatch.setattr(page_cache_read, "is_cached", lambda _fd, _offset: pytest.fail("the page cache was checked"))
    assert sorted(made.sampler) == list(range(SAMPLES))


def test_workers_that_never_read_get_no_files(shards, loader, cached):
    for settings in ({}, {"shuffle": False, "sampler": range(SAMPLES)}):
        made = loader(shards, page_cache=False, **settings)
        assert made._source.worker_program(made._source.slab_layout(4)).files is None
        assert sorted(keys_of(made)) == [f"{number:03d}" for number in range(SAMPLES)]


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_truncated_shard_ends_the_epoch_with_every_error_policy(shards, loader, cached, on_error):
    made = loader(shards, on_error=on_error, max_bad_fraction=1.0)
    os.truncate(shards[1], 20_000)
    with pytest.raises(StorageError, match="has changed since it was indexed") as caught:
        list(made)
    assert (caught.value.shard, caught.value.member) == (shards[1], None)


def test_an_array_of_another_shape_is_the_same_error_from_workers_and_readers(tmp_path, loader, cached):
    def change(number, parts):
        return parts | {".raw.npy": encode_npy(np.zeros((5, 3) if number == 7 else (3, 5), np.float32))}

    path = write(tmp_path / "odd.tar", range(12), change)
    locations = []
    for page_cache in (True, False):
        with pytest.raises(SampleError, match=r"float32\[5, 3\] where float32\[3, 5\] is expected") as caught:
            list(loader([path], page_cache=page_cache))
        locations.append((caught.value.member, caught.value.offset))
    assert locations[0] == locations[1]
    assert locations[0][0] == "007.raw.npy"


@pytest.mark.parametrize(
    "odd",
    [
        np.zeros((3, 5), np.float64),
        np.zeros((3, 6), np.float32),
        np.zeros((3, 5), ">f4"),
        np.zeros((2, 5), np.float32),
        np.asfortranarray(np.arange(15, dtype=np.float32).reshape(3, 5)),
    ],
)
def test_workers_and_readers_agree_on_every_kind_of_array(tmp_path, loader, cached, odd):
    """Also for arrays of the expected length in bytes, and for longer headers."""
    out = io.BytesIO()
    np.save(out, odd)
    data = out.getvalue()
    path = write(
        tmp_path / "odd.tar", range(4), lambda number, parts: parts | ({".raw.npy": data} if number == 2 else {})
    )
    results = []
    for page_cache in (True, False):
        try:
            results.append(as_lists(loader([path], {"raw": FIELDS["raw"]}, page_cache=page_cache)))
        except SampleError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_raw_arrays_are_read_into_their_slots_without_a_copy(shards, loader, cached, monkeypatch):
    monkeypatch.setattr(Array, "decode_into", lambda *_: pytest.fail("a copy was made"))
    batches = list(loader(shards, {"raw": FIELDS["raw"]}))
    assert torch.cat([batch["raw"] for batch in batches]).shape == (SAMPLES, 3, 5)
    for batch in batches:
        for key, raw in zip(batch["__key__"], batch["raw"], strict=True):
            assert np.array_equal(raw, np.random.default_rng(int(key)).random((3, 5), np.float32))


def test_a_short_read_is_continued(shards, loader, cached, monkeypatch):
    whole = as_lists(loader(shards))
    real = os.preadv

    def preadv(fd, buffers, offset, *flags):
        return real(fd, [buffers[0][:100]], offset, *flags)

    made = loader(shards)
    monkeypatch.setattr(os, "preadv", preadv)
    assert as_lists(made) == whole


@pytest.mark.parametrize("suffix", [".raw.npy", ".txt"])
def test_a_byte_that_changed_since_packing_is_found_by_the_worker(tmp_path, loader, cached, suffix):
    path = tmp_path / "packed.tar"
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for number in range(4):
            writer.add(f"{number:03d}", list(parts_of(number).items()))
        writer.finish()
    index = writer.index(str(path))
    save_index(index, path)
    part = next(part for part in index.sample(2).parts if part.suffix == suffix)
    data = bytearray(path.read_bytes())
    data[part.offset + part.length - 1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(0, index.binding.mtime_ns))
    with pytest.raises(DecodeError, match="CRC32 does not match the index") as caught:
        list(loader([str(path)]))
    assert (caught.value.member, caught.value.offset) == (f"002{suffix}", part.offset)
