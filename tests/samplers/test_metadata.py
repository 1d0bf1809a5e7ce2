"""Reading metadata once: of shards from their small parts alone, of any other dataset by a function."""

import json
import logging
import os

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from penstock.data.fields import Image, Label
from penstock.data.read.block_source import ShardBlockSource
from penstock.datasets import ShardDataset
from penstock.errors import DecodeError, PairingError, SampleError, SettingError
from penstock.samplers import MetadataTable, metadata, read_metadata
from penstock.testing import REID, make_shards
from penstock.testing.shard_maker import write_tar

SAMPLES = 40
FIELDS = {"image": Image(".jpg", size=(32, 16), fit="stretch"), "id": Label(".json", key="identity")}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    make_shards(folder, REID, samples=SAMPLES, shards=3, order="grouped", scale=0.1)
    return folder


@pytest.fixture
def dataset(shards):
    return ShardDataset(shards, FIELDS)


@pytest.fixture
def reads(monkeypatch):
    """Return the list of blocks that were read so far."""
    seen = []
    read_block = ShardBlockSource.read_block
    monkeypatch.setattr(
        ShardBlockSource, "read_block", lambda self, block, into: (seen.append(block), read_block(self, block, into))[1]
    )
    return seen


def test_metadata_of_shards_is_that_of_their_json_parts(dataset):
    table = read_metadata(dataset, ".json")
    assert list(table.columns) == ["identity", "camera", "modality"]
    assert [table.row(number)["identity"] for number in range(SAMPLES)] == [int(each["id"]) for each in dataset]


@pytest.mark.parametrize("order", ["adjacent", "shuffled"])
@pytest.mark.parametrize("compression", [None, "zst"])
def test_parts_may_lie_anywhere_in_plain_and_in_compressed_shards(tmp_path, shards, dataset, order, compression):
    make_shards(tmp_path, REID, samples=SAMPLES, shards=3, order=order, scale=0.1, compression=compression)
    other = ShardDataset(tmp_path, {"id": Label(".json", key="identity")})
    table, reference = read_metadata(other, ".json"), read_metadata(dataset, ".json")
    by_key = {dataset[number]["__key__"]: reference.row(number) for number in range(SAMPLES)}
    assert [table.row(number) for number in range(SAMPLES)] == [by_key[each["__key__"]] for each in other]


def test_the_part_need_not_be_a_field_of_the_dataset(shards):
    table = read_metadata(ShardDataset(shards, {"image": FIELDS["image"]}), ".json", columns=["camera"])
    assert set(table.column("camera").codes()[1]) == {1, 2, 3, 4, 5, 6}


def test_shards_are_not_read_a_second_time(shards, reads):
    first = read_metadata(ShardDataset(shards, FIELDS), ".json")
    assert reads
    reads.clear()
    again = read_metadata(ShardDataset(shards, FIELDS), ".json")
    assert reads == []
    assert again.fingerprint == first.fingerprint
    read_metadata(ShardDataset(shards, FIELDS), ".json", columns=["camera"])
    assert reads, "other columns are cached separately"


def test_shards_that_changed_in_place_are_read_again(tmp_path):
    (path,) = make_shards(tmp_path, REID, samples=4, scale=0.1)
    before = read_metadata(ShardDataset(path, FIELDS), ".json")
    content = path.read_bytes()
    changed = content.replace(b'"identity": 2', b'"identity": 9')
    assert len(changed) == len(content) != content.count(b'"identity": 9')
    path.write_bytes(changed)
    os.utime(path, ns=(1, 1))
    after = read_metadata(ShardDataset(path, FIELDS), ".json")
    assert (before.row(0)["identity"], after.row(0)["identity"]) == (2, 9)


def test_a_damaged_cache_file_is_ignored(shards, reads, private_cache):
    read_metadata(ShardDataset(shards, FIELDS), ".json")
    (file,) = (private_cache / "metadata").glob("*.json")
    record = json.loads(file.read_bytes())
    record["columns"]["modality"]["words"].pop()
    file.write_text(json.dumps(record))
    reads.clear()
    assert len(read_metadata(ShardDataset(shards, FIELDS), ".json")) == SAMPLES
    assert reads


def test_without_a_cache_metadata_is_read_every_time(shards, reads, tmp_path, monkeypatch):
    dataset = ShardDataset(shards, FIELDS)
    monkeypatch.setenv("PENSTOCK_CACHE", str(shards / "reid-000000.tar" / "impossible"))
    for _ in range(2):
        reads.clear()
        read_metadata(dataset, ".json")
        assert reads


def test_metadata_of_keys_needs_no_read(dataset, reads):
    table = read_metadata(dataset, lambda key: {"person": int(key[:4]), "camera": key[5:7]}, of="key")
    assert reads == []
    assert table.row(0) == {"person": 2, "camera": "c1"}


def test_a_sample_without_the_part_is_named(tmp_path):
    write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("1.json", b"{}"), ("2.jpg", b"x")], None)
    dataset = ShardDataset(tmp_path / "a.tar", {"image": Image(".jpg")})
    with pytest.raises(PairingError, match=r"no \.json.*member 2"):
        read_metadata(dataset, ".json")


def test_an_error_about_an_invalid_json_part_reports_its_offset(tmp_path):
    write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("1.json", b"{}"), ("2.jpg", b"x"), ("2.json", b"{")], None)
    with pytest.raises(DecodeError) as caught:
        read_metadata(ShardDataset(tmp_path / "a.tar", {"image": Image(".jpg")}), ".json")
    assert (caught.value.member, caught.value.offset) == ("2.json", 3584)


def test_an_error_of_the_function_names_the_key(dataset):
    with pytest.raises(SampleError, match=r"ValueError.*0002_c1s1"):
        read_metadata(dataset, lambda key: {"id": int(key)}, of="key")


class Faces(Dataset):
    """A typical map-style dataset."""

    def __init__(self, identities):
        self.identities = identities

    def __len__(self):
        return len(self.identities)

    def __getitem__(self, index):
        return torch.full((3, 4), float(index)), self.identities[index]


def describe(sample):
    image, identity = sample
    return {"identity": identity, "brightness": image.mean(), "random": np.random.random()}


def identity_of(sample):
    return {"identity": sample[1]}


@pytest.mark.parametrize("workers", [0, 2])
def test_any_dataset_is_described_by_a_function_in_order(workers):
    dataset = Faces([number % 7 for number in range(200)])
    table = read_metadata(dataset, describe, columns=["identity", "brightness"], workers=workers)
    assert [table.row(number) for number in (0, 130)] == [
        {"identity": 0, "brightness": 0.0},
        {"identity": 4, "brightness": 130.0},
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_random_generators_are_restored(workers):
    before = torch.get_rng_state(), np.random.get_state()[1:3]
    read_metadata(Faces([1, 2, 3]), describe, workers=workers)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1][1] == np.random.get_state()[2]
    assert np.array_equal(before[1][0], np.random.get_state()[1])


class Counted(Faces):
    made = 0

    def __getitem__(self, index):
        Counted.made += 1
        return super().__getitem__(index)


@pytest.fixture
def made():
    Counted.made = 0
    return lambda: Counted.made


def test_only_a_few_samples_are_read_a_second_time(made):
    first = read_metadata(Counted(list(range(100))), identity_of, workers=0)
    assert made() == 100
    again = read_metadata(Counted(list(range(100))), identity_of, workers=0)
    assert made() <= 100 + metadata.CHECKED_SAMPLES
    assert again.fingerprint == first.fingerprint


def test_a_dataset_with_other_content_is_read_again(made):
    read_metadata(Counted(list(range(100))), identity_of, workers=0)
    table = read_metadata(Counted(list(range(1, 101))), identity_of, workers=0)
    assert made() == 200
    assert table.row(0) == {"identity": 1}


def test_a_changed_file_that_the_dataset_opens_is_noticed(tmp_path, caplog):
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(list(range(50))))
    read_metadata(FromFile(path), identity_of, workers=0)
    path.write_text(json.dumps(list(range(100, 150))))
    with caplog.at_level(logging.WARNING, "penstock"):
        table = read_metadata(FromFile(path), identity_of, workers=0)
    assert table.row(3) == {"identity": 103}
    assert "changed" in caplog.text


class FromFile(Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return None, json.loads(self.path.read_text())[index]


def test_a_fingerprint_of_the_user_replaces_the_check(made):
    read_metadata(Counted(list(range(100))), identity_of, fingerprint="v1", workers=0)
    read_metadata(Counted(list(range(100))), identity_of, fingerprint="v1", workers=0)
    assert made() == 100
    read_metadata(Counted(list(range(100))), identity_of, fingerprint="v2", workers=0)
    assert made() == 200


def test_a_function_with_other_bound_values_is_cached_separately(made):
    def shifted(by):
        return lambda sample: {"identity": sample[1] + by}

    read_metadata(Counted([1, 2]), shifted(1), workers=0)
    assert read_metadata(Counted([1, 2]), shifted(5), workers=0).row(0) == {"identity": 6}
    assert made() == 4


def test_metadata_of_a_dataset_that_cannot_be_pickled_is_not_cached(private_cache, caplog):
    dataset = Faces([1, 2, 3])
    dataset.lock = open(os.devnull)  # noqa: SIM115
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(read_metadata(dataset, identity_of, workers=0)) == 3
    dataset.lock.close()
    assert "fingerprint" in caplog.text
    assert not list(private_cache.glob("metadata/*.json"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_fails_is_named(workers):
    dataset = Faces([1, 2, 3])
    with pytest.raises(SampleError, match=r"ZeroDivisionError.*Faces, member 2"):
        read_metadata(dataset, lambda sample: {"x": 1 / (sample[1] - 3)}, workers=workers)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        (Faces([]), (identity_of,), "empty"),
        (Faces([1]), (".json",), "ShardDataset"),
        (Stream(), (identity_of,), "map-style"),
        (7, (identity_of,), "map-style"),
    ],
)
def test_datasets_without_metadata_are_refused(dataset, arguments, message):
    with pytest.raises(SettingError, match=message):
        read_metadata(dataset, *arguments)


def test_settings_that_would_be_ignored_are_refused(dataset):
    for settings in ({"workers": 2}, {"fingerprint": "v1"}):
        with pytest.raises(SettingError, match="shards need neither"):
            read_metadata(dataset, ".json", **settings)
    with pytest.raises(SettingError, match="Use sample or key"):
        read_metadata(dataset, identity_of, of="keys")


def test_every_type_of_value_survives_caching(private_cache):
    values = {
        "byte": [-3, 100],
        "long": [-(2**62), 2**62],
        "short": [200, -200],
        "float": [0.1, 1e300],
        "word": ["", "ü"],
    }
    dataset = Faces(list(zip(*values.values(), strict=True)))
    function = Row(tuple(values))
    first, again = (read_metadata(dataset, function, workers=0) for _ in range(2))
    assert [again.row(number) for number in range(2)] == [first.row(number) for number in range(2)]
    assert again.row(1)["long"] == 2**62
    assert isinstance(again, MetadataTable)


class Row:
    def __init__(self, names):
        self.names = names

    def __call__(self, sample):
        return dict(zip(self.names, sample[1], strict=True))
