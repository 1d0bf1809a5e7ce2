"""Packed shards, read by webdataset."""

import gc
import io

import numpy as np
import pytest
import webdataset
from torch.utils.data import DataLoader

from penstock.testing import MULTICAMERA, SA1B, make_folder, make_shards, tar_bytes

MIB = 1 << 20
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset never closes a shard
METADATA = ("__key__", "__url__", "__local_path__")
"""Entries of webdataset's samples that are not parts."""


@pytest.fixture(autouse=True)
def close_files_left_open():
    """Collect the shards that webdataset leaves open, so that their ResourceWarning is not raised in a later test."""
    yield
    gc.collect()


def read(folder):
    """Return the parts of each sample, by key and suffix without its dot; no key may occur twice."""
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    samples = [key_and_parts(sample) for sample in webdataset.WebDataset(urls, shardshuffle=False)]
    keys = [key for key, _ in samples]
    assert len(set(keys)) == len(keys)
    return dict(samples)


def key_and_parts(sample):
    return sample["__key__"], {name: data for name, data in sample.items() if name not in METADATA}


@pytest.mark.parametrize("order", ["adjacent", "interleaved", "grouped", "shuffled"])
def test_webdataset_reads_complete_samples_for_every_order_of_parts_in_the_source(
    tmp_path, pack_in_process, originals, order
):
    make_shards(tmp_path / "src", SA1B, samples=6, order=order, scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed")
    assert read(packed.folder) == {
        key: {"jpg": parts[".jpg"], "features.npz": parts["_features.npz"]} for key, parts in originals(SA1B, 6).items()
    }


def test_webdataset_reads_split_arrays(tmp_path, pack_in_process, originals):
    make_folder(tmp_path / "src", SA1B, samples=3, scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed", arrays="raw")
    samples = read(packed.folder)
    for key, parts in originals(SA1B, 3).items():
        assert list(samples[key]) == ["jpg", "features.features.npy", "features.edge.npy"]
        with np.load(io.BytesIO(parts["_features.npz"])) as arrays:
            for name in arrays.files:
                stored = np.load(io.BytesIO(samples[key][f"features.{name}.npy"]))
                assert np.array_equal(stored, arrays[name])


def test_webdataset_decodes_the_images_and_arrays_of_a_pack(tmp_path, pack_in_process):
    make_shards(tmp_path / "src", SA1B, samples=2, scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed", arrays="raw", image_size=96)
    pipeline = webdataset.WebDataset(str(packed.folder / "shard-000000.tar"), shardshuffle=False).decode("rgb8")
    for sample in pipeline:
        assert sample["jpg"].shape == (64, 96, 3)
        assert sample["features.features.npy"].dtype == np.float16


def test_webdataset_reads_samples_with_the_parts_of_several_cameras(tmp_path, pack_in_process, originals):
    make_shards(tmp_path / "src", MULTICAMERA, samples=3, order="shuffled", scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed")
    assert read(packed.folder) == {
        key: {suffix[1:]: data for suffix, data in parts.items()} for key, parts in originals(MULTICAMERA, 3).items()
    }


def test_webdataset_reads_unusual_keys_unchanged(tmp_path, pack_in_process):
    keys = ["a/b/0001", "v1.5/0001", "日本/猫", "naïve", "x" * 300, "/".join(["d" * 90] * 4), "with space"]
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([(key + end, key.encode()) for end in (".txt", "_note.bin") for key in keys]))
    packed = pack_in_process(shard, tmp_path / "packed")
    assert read(packed.folder) == {key: {"txt": key.encode(), "note.bin": key.encode()} for key in keys}


def test_webdataset_reads_equal_keys_of_two_sources_as_two_samples(tmp_path, pack_in_process):
    for folder in ("train", "val"):
        (tmp_path / "src" / folder).mkdir(parents=True)
        (tmp_path / "src" / folder / "000.tar").write_bytes(tar_bytes([("1.txt", folder.encode())]))
    packed = pack_in_process(tmp_path / "src" / "*" / "*.tar", tmp_path / "packed")
    assert sorted(fields["txt"] for fields in read(packed.folder).values()) == [b"train", b"val"]


def key_and_sizes(sample):
    return sample["__key__"], len(sample["jpg"]), len(sample["features.npz"])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_torch_workers_read_a_pack_through_webdataset(tmp_path, pack_with_workers, originals):
    make_shards(tmp_path / "src", SA1B, samples=90, order="grouped", scale=0.1)
    packed = pack_with_workers(tmp_path / "src", tmp_path / "packed", workers=2, shard_bytes=MIB)
    urls = [str(path) for path in sorted(packed.folder.glob("*.tar"))]
    assert len(urls) >= 2
    dataset = webdataset.WebDataset(urls, shardshuffle=False, workersplitter=webdataset.split_by_worker).map(
        key_and_sizes
    )
    read_back = sorted(tuple(sample) for sample in DataLoader(dataset, batch_size=None, num_workers=2))
    assert read_back == [
        (key, len(parts[".jpg"]), len(parts["_features.npz"])) for key, parts in originals(SA1B, 90).items()
    ]
