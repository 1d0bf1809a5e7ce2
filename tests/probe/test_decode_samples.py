import pickle

import numpy as np
import pytest

from penstock.core.slab_layout import SlotSpec
from penstock.data.fields import Array, Image
from penstock.errors import SampleError, ShardError
from penstock.probe import decode_samples as room
from penstock.probe.decode_samples import from_shard, made_up, part_of
from penstock.testing import REID, SA1B, make_shards, tar_bytes

PICTURE = {"image": Image(".jpg", size=32, fit="stretch")}


def test_made_up_pictures_decode_to_squares():
    material = made_up(size=48, count=2)
    assert material.slots == {"image": SlotSpec((3, 48, 48), "|u1")}
    assert (len(material.samples), material.bad, material.decoded_bytes) == (2, 0, 3 * 48 * 48)
    assert 10_000 < material.sample_bytes < 200_000
    assert "made-up" in material.source


@pytest.mark.parametrize("compression", [None, "gz"])
def test_samples_of_a_shard_come_with_the_parts_that_are_decoded(tmp_path, compression):
    (shard,) = make_shards(tmp_path, SA1B, samples=3, order="grouped", scale=0.05, compression=compression)
    material = from_shard(shard, {"features": Array("_features.npz", key="features")})
    assert [list(sample) for sample in material.samples] == [["_features.npz"]] * 3
    assert material.slots["features"].dtype == "<f2"
    assert material.source == shard.name


def test_no_more_is_read_than_the_bounds_allow(tmp_path, monkeypatch):
    (shard,) = make_shards(tmp_path, REID, samples=40, scale=0.5)
    assert len(from_shard(shard, PICTURE).samples) == room.SAMPLES_MAX
    monkeypatch.setattr(room, "BYTES_MAX", 1)
    assert len(from_shard(shard, PICTURE).samples) == 1  # one is needed, whatever its size
    monkeypatch.setattr(room, "ONE_BYTES_MAX", 1)
    with pytest.raises(ShardError, match="first sample is larger"):
        from_shard(shard, PICTURE)


def test_bad_samples_are_left_out_and_counted(tmp_path):
    (whole,) = make_shards(tmp_path, REID, samples=1, scale=0.5)
    good = from_shard(whole, PICTURE).samples[0][".jpg"]
    shard = tmp_path / "mixed.tar"
    shard.write_bytes(tar_bytes([("a.jpg", b"not a picture"), ("b.jpg", good), ("c.jpg", good)]))
    material = from_shard(shard, PICTURE)
    assert (len(material.samples), material.bad) == (2, 1)


def test_arrays_of_another_shape_than_the_first_are_left_out(tmp_path):
    members = [(f"{name}.npy", npy(np.zeros(size))) for name, size in (("a", 4), ("b", 5), ("c", 4))]
    shard = tmp_path / "ragged.tar"
    shard.write_bytes(tar_bytes(members))
    assert from_shard(shard, {"x": Array(".npy")}).bad == 1
    assert from_shard(shard, {"x": Array(".npy", ragged=True)}).bad == 0


def test_a_shard_in_which_nothing_decodes_says_why(tmp_path):
    shard = tmp_path / "bad.tar"
    shard.write_bytes(tar_bytes([("a.jpg", b"not a picture")]))
    with pytest.raises(SampleError):
        from_shard(shard, PICTURE)
    with pytest.raises(SampleError, match=r"has no part \.png"):
        from_shard(shard, {"image": Image(".png", size=8)})


def test_a_field_of_the_users_own_may_raise_anything(tmp_path):
    class Broken:
        suffixes = (".jpg",)
        fixed_shape = False

        def decode_value(self, suffix, data):
            raise ZeroDivisionError("mine")

    shard = tmp_path / "s.tar"
    shard.write_bytes(tar_bytes([("a.jpg", b"x")]))
    with pytest.raises(SampleError, match="ZeroDivisionError: mine"):
        from_shard(shard, {"image": Broken()})


def test_the_preferred_suffix_is_taken():
    field = Image((".png", ".jpg"), size=8)
    assert part_of(field, {".jpg": b"j", ".png": b"p"}) == (".png", b"p")


def test_material_can_be_sent_to_a_process():
    material = made_up(size=16, count=1)
    assert pickle.loads(pickle.dumps(material)) == material


def npy(array):
    import io

    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
