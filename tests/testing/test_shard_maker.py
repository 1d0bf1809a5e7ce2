from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from penstock.errors import SettingError
from penstock.testing import MULTICAMERA, REID, SA1B, make_folder, make_shards, sample_parts, tar_bytes

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ORDERS = ["adjacent", "interleaved", "grouped", "shuffled"]


def names(path: Path) -> list[str]:
    with tarfile.open(path, "r:") as tar:
        return tar.getnames()


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def digest(paths: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def test_members_are_in_the_requested_order(tmp_path):
    def made(order: str) -> list[str]:
        [path] = make_shards(tmp_path / order, SA1B, samples=3, order=order, scale=0.02)
        return [name.removeprefix("sa_00000") for name in names(path)]

    assert made("adjacent") == [
        "1.jpg",
        "1_features.npz",
        "2.jpg",
        "2_features.npz",
        "3.jpg",
        "3_features.npz",
    ]
    assert made("interleaved") == [
        "1.jpg",
        "2.jpg",
        "1_features.npz",
        "2_features.npz",
        "3.jpg",
        "3_features.npz",
    ]
    assert made("grouped") == [
        "1.jpg",
        "2.jpg",
        "3.jpg",
        "1_features.npz",
        "2_features.npz",
        "3_features.npz",
    ]
    assert sorted(made("shuffled")) == sorted(made("adjacent"))


def test_shuffled_members_depend_on_the_seed(tmp_path):
    def made(folder: str, seed: int) -> list[str]:
        [path] = make_shards(tmp_path / folder, REID, samples=20, seed=seed, order="shuffled", scale=0.1)
        return names(path)

    assert made("a", 1) == made("b", 1)
    assert made("c", 2) != made("a", 1) != sorted(made("a", 1))


def test_every_order_has_the_same_samples_in_the_same_shards(tmp_path):
    made = {
        order: make_shards(tmp_path / order, MULTICAMERA, samples=5, shards=2, seed=3, order=order, scale=0.05)
        for order in ORDERS
    }
    for shard in range(2):
        held = [contents(made[order][shard].read_bytes()) for order in ORDERS]
        assert all(each == held[0] for each in held)
        assert len(held[0]) == (2, 3)[shard] * 7


def test_all_samples_are_spread_evenly_over_the_shards(tmp_path):
    paths = make_shards(tmp_path, REID, samples=11, shards=3, scale=0.1)
    assert [path.name for path in paths] == [f"reid-{shard:06d}.tar" for shard in range(3)]
    held = [contents(path.read_bytes()) for path in paths]
    assert [len(each) for each in held] == [6, 8, 8]
    everything = {name: data for each in held for name, data in each.items()}
    wanted = {
        REID.key(index) + suffix: data
        for index in range(11)
        for suffix, data in sample_parts(REID, index, scale=0.1).items()
    }
    assert everything == wanted


@pytest.mark.parametrize(("compression", "open_it"), [("gz", gzip.decompress), ("zst", zstd.decompress)])
def test_a_compressed_shard_is_the_plain_one_compressed(tmp_path, compression, open_it):
    [plain] = make_shards(tmp_path, REID, samples=4, scale=0.2)
    [packed] = make_shards(tmp_path, REID, samples=4, scale=0.2, compression=compression)
    assert packed.name == f"{plain.name}.{compression}"
    assert open_it(packed.read_bytes()) == plain.read_bytes()


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
def test_another_process_makes_the_same_bytes(tmp_path, compression):
    code = (
        "import sys; from penstock.testing import SA1B, make_shards\n"
        f"make_shards(sys.argv[1], SA1B, samples=4, shards=2, seed=9, compression={compression!r},"
        " order='shuffled', scale=0.04)"
    )
    own = make_shards(
        tmp_path / "here",
        SA1B,
        samples=4,
        shards=2,
        seed=9,
        compression=compression,
        order="shuffled",
        scale=0.04,
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "there")], check=True, timeout=120)
    other = sorted((tmp_path / "there").iterdir())
    assert [path.name for path in other] == [path.name for path in own]
    assert digest(other) == digest(own)


def test_headers_have_no_time_and_no_user(tmp_path):
    [path] = make_shards(tmp_path, REID, samples=1, scale=0.1)
    with tarfile.open(path) as tar:
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in tar} == {(0, 0, 0, "")}


def test_a_folder_has_the_samples_of_the_shards_as_loose_files(tmp_path):
    [path] = make_shards(tmp_path / "shards", SA1B, samples=3, seed=2, scale=0.03)
    folder = make_folder(tmp_path / "deep" / "loose", SA1B, samples=3, seed=2, scale=0.03)
    loose = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert loose == contents(path.read_bytes())


@pytest.mark.parametrize(
    "settings",
    [
        {"samples": 0},
        {"samples": 2, "shards": 3},
        {"samples": 2, "shards": 0},
        {"samples": 2, "order": "alphabetical"},
        {"samples": 2, "compression": "bz2"},
    ],
)
def test_invalid_settings_are_refused_before_anything_is_written(tmp_path, settings):
    with pytest.raises(SettingError):
        make_shards(tmp_path / "shards", REID, **settings)
    assert not (tmp_path / "shards").exists()


def test_members_can_be_read_back_even_if_two_have_the_same_name():
    members = [("a.jpg", b"one"), ("a.jpg", b"two"), ("empty.npz", b""), ("x" * 300 + ".jpg", b"long")]
    with tarfile.open(fileobj=io.BytesIO(tar_bytes(members))) as tar:
        assert [(member.name, tar.extractfile(member).read()) for member in tar] == members


def test_no_members_make_an_empty_valid_tar():
    data = tar_bytes([])
    assert data == bytes(len(data))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == []
