"""Large samples that are in memory already: workers read them for themselves."""

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
from penstock.data.read import block_source as read
from penstock.data.read import page_cache_read as straight
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
    """What the page cache is said to hold: everything, as long as this is so; any sample is large."""
    answers = {"in_memory": True}
    monkeypatch.setattr(read, "WORKER_READ_BYTES", 1)
    monkeypatch.setattr(straight, "is_cached", lambda _fd, _offset: answers["in_memory"])
    monkeypatch.setattr(straight, "identify_storage", lambda _path: pytest.fail("the page cache had an answer"))
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
    """Of samples with these keys, the parts that FIELDS has."""
    suffixes = (".jpg", "_features.npz", ".raw.npy", ".txt")
    return sum(len(parts_of(int(key))[suffix]) for key in keys for suffix in suffixes)


def open_tars(folder):
    """Those that this process has open."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return [name for link in links if os.path.lexists(link) and (name := os.readlink(link)).startswith(str(folder))]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_workers_that_read_for_themselves_deliver_the_same_and_readers_do_nothing(shards, loader, cached, executor):
    straight = loader(shards, executor=executor)
    found = as_lists(straight)
    assert straight.stats().engine.reads == 0
    assert straight.stats().engine.bytes_read == wanted_bytes(keys_of(found))
    usual = loader(shards, executor=executor, page_cache=False)
    assert as_lists(usual) == found
    assert usual.stats().engine.reads > 0
    assert sorted(keys_of(found)) == [f"{number:03d}" for number in range(SAMPLES)]


def test_a_transform_gets_the_same_values(shards, loader, cached):
    def transform(sample, rng):
        return {"raw": sample["raw"] * 2 + rng.random(), "image": sample["image"], "text": sample["name"]}

    straight, usual = (loader(shards, transform=transform, page_cache=cache) for cache in (True, False))
    assert as_lists(straight) == as_lists(usual)
    assert straight.stats().engine.reads == 0


def test_small_samples_and_what_is_not_in_memory_are_left_to_readers(shards, loader, cached, monkeypatch):
    monkeypatch.setattr(straight, "identify_storage", lambda _path: penstock_kind(in_memory=False))
    cached["in_memory"] = False
    cold = loader(shards)
    assert len(list(cold)) == SAMPLES // 4
    assert cold.stats().engine.reads > 0
    cached["in_memory"] = True
    monkeypatch.setattr(read, "WORKER_READ_BYTES", 1 << 30)
    small = loader(shards)
    assert len(list(small)) == SAMPLES // 4
    assert small.stats().engine.reads > 0


def penstock_kind(*, in_memory):
    kind = type("Kind", (), {"in_memory": in_memory})
    return type("Storage", (), {"kind": kind})


def test_files_that_can_only_be_in_memory_need_no_page_cache(shards, loader, cached, monkeypatch):
    cached["in_memory"] = False
    monkeypatch.setattr(straight, "identify_storage", lambda _path: penstock_kind(in_memory=True))
    made = loader(shards)
    list(made)
    assert made.stats().engine.reads == 0


def test_who_reads_is_decided_anew_for_each_pass(shards, loader, cached, monkeypatch):
    monkeypatch.setattr(straight, "identify_storage", lambda _path: penstock_kind(in_memory=False))
    cached["in_memory"] = False
    made = loader(shards)
    first = sorted(keys_of(made))
    reads = made.stats().engine.reads
    assert reads > 0
    cached["in_memory"] = True
    assert sorted(keys_of(made)) == first
    assert made.stats().engine.reads == reads


def test_a_pass_that_is_left_and_resumed_goes_on_where_it_was(shards, loader, cached):
    whole = as_lists(loader(shards))
    first = loader(shards)
    assert as_lists(islice(first, 2)) == whole[:2]
    other = loader(shards)
    other.load_state_dict(first.state_dict())
    assert as_lists(other) == whole[2:]


def test_a_mix_of_sources_is_read_by_workers_too(shards, loader, cached):
    straight, usual = (
        loader({shards[0]: 1, shards[1]: 3}, page_cache=cache, max_samples=SAMPLES) for cache in (True, False)
    )
    found = as_lists(straight)
    assert found == as_lists(usual)
    assert straight.stats().engine.reads == 0
    assert straight.stats().engine.bytes_read == wanted_bytes(keys_of(found))


def test_shards_on_a_disk_are_not_taken_for_memory_because_others_are(shards, loader, cached, monkeypatch):
    class Disks:
        """Each shard on a device of its own."""

        preadv = os.preadv

        @staticmethod
        def fstat(fd):
            return os.stat_result((0, 0, hash(os.readlink(f"/proc/self/fd/{fd}")), *[0] * 7))

    cached["in_memory"] = False
    monkeypatch.setattr(straight, "os", Disks)
    monkeypatch.setattr(straight, "identify_storage", lambda path: penstock_kind(in_memory=path == shards[0]))
    made = loader(shards)
    list(made)
    assert made.stats().engine.reads > 0


@pytest.mark.parametrize("page_cache", [True, False])
def test_a_shard_that_is_written_into_between_two_passes_ends_the_second(shards, loader, cached, page_cache):
    made = loader(shards, page_cache=page_cache, on_error="skip", max_bad_fraction=1.0)
    list(made)
    with open(shards[1], "rb+") as file:
        file.write(b"0")
    facts = os.stat(shards[1])
    os.utime(shards[1], ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    with pytest.raises(StorageError, match="has changed since it was indexed"):
        list(made)


@pytest.mark.parametrize("stopgaps", [True, False])
def test_nothing_stays_open_after_a_pass_was_left(shards, loader, cached, tmp_path, stopgaps):
    made = loader(shards, executor="process" if stopgaps else "thread")
    for _ in made:
        assert len(open_tars(tmp_path)) <= SHARDS  # not for each thread
        break
    assert open_tars(tmp_path) == []


MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import penstock
from penstock.data.read import page_cache_read as straight, block_source as read
read.WORKER_READ_BYTES, read.is_cached = 1, lambda fd, offset: True
loader = penstock.Loader(sys.argv[1], {"label": penstock.Label(".cls")}, 10, shuffle=True, device="numpy",
                         num_workers=4,
                         engine=penstock.EngineOptions("thread"), reading=penstock.ReadOptions(num_readers=1))
print(sum(len(batch["label"]) for batch in loader), loader.stats().engine.reads)
"""


def test_more_shards_than_a_process_may_open_can_be_read_by_threads(tmp_path):
    make_shards(tmp_path, IMAGENET, samples=100, shards=100, scale=0.05)
    run = subprocess.run([sys.executable, "-c", MANY, f"{tmp_path}/*.tar"], capture_output=True, text=True, timeout=60)
    assert (run.stdout.strip(), run.returncode) == ("100 0", 0), run.stderr


def test_to_ask_for_the_order_is_not_to_decide_anew_who_reads(shards, loader, cached, monkeypatch):
    made = loader(shards)
    monkeypatch.setattr(straight, "is_cached", lambda _fd, _offset: pytest.fail("somebody looked"))
    assert sorted(made.sampler) == list(range(SAMPLES))


def test_workers_that_never_read_are_told_of_no_file(shards, loader, cached):
    for settings in ({}, {"shuffle": False, "sampler": range(SAMPLES)}):
        made = loader(shards, page_cache=False, **settings)
        assert made._source.worker_program(made._source.slab_layout(4)).files is None
        assert sorted(keys_of(made)) == [f"{number:03d}" for number in range(SAMPLES)]


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_shard_that_was_cut_short_ends_the_pass_whatever_is_done_with_bad_samples(shards, loader, cached, on_error):
    made = loader(shards, on_error=on_error, max_bad_fraction=1.0)
    os.truncate(shards[1], 20_000)
    with pytest.raises(StorageError, match="has changed since it was indexed") as caught:
        list(made)
    assert (caught.value.shard, caught.value.member) == (shards[1], None)


def test_an_array_of_another_shape_is_named_as_ever(tmp_path, loader, cached):
    def change(number, parts):
        return parts | {".raw.npy": encode_npy(np.zeros((5, 3) if number == 7 else (3, 5), np.float32))}

    path = write(tmp_path / "odd.tar", range(12), change)
    said = []
    for page_cache in (True, False):
        with pytest.raises(SampleError, match=r"float32\[5, 3\] where float32\[3, 5\] is expected") as caught:
            list(loader([path], page_cache=page_cache))
        said.append((caught.value.member, caught.value.offset))
    assert said[0] == said[1]
    assert said[0][0] == "007.raw.npy"


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
def test_whatever_an_array_is_both_ways_agree(tmp_path, loader, cached, odd):
    """Also where its length is that of the usual one, or its header longer."""
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


def test_raw_arrays_are_read_into_their_slots_and_copied_nowhere(shards, loader, cached, monkeypatch):
    monkeypatch.setattr(Array, "decode_into", lambda *_: pytest.fail("a copy was made"))
    batches = list(loader(shards, {"raw": FIELDS["raw"]}))
    assert torch.cat([batch["raw"] for batch in batches]).shape == (SAMPLES, 3, 5)
    for batch in batches:
        for key, raw in zip(batch["__key__"], batch["raw"], strict=True):
            assert np.array_equal(raw, np.random.default_rng(int(key)).random((3, 5), np.float32))


def test_a_read_that_is_cut_short_goes_on(shards, loader, cached, monkeypatch):
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
