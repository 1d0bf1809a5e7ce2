"""Finishing and stable addresses through a whole loader, on the CPU."""

import gc
import weakref

import numpy as np
import pytest
import simplejpeg
import torch
from tests.support.loader_helpers import keys_of

import penstock
from penstock.data.fields import Array, GpuTransform, Image, Label
from penstock.errors import SettingError
from penstock.shards.codecs.arrays import encode_npy
from penstock.testing import make_image, tar_bytes

FINISH = GpuTransform("float16", size=24, crop=(0.3, 1.0), flip=0.5, jitter=(0.2, 0.2, 0.2, 0.1))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """24 pictures in three shards, each with its number."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(3):
        members = []
        for number in range(8 * shard, 8 * shard + 8):
            jpeg = simplejpeg.encode_jpeg(make_image(50, 70, number), quality=90)
            members += [(f"{number:03d}.jpg", jpeg), (f"{number:03d}.cls", str(number).encode())]
        (folder / f"{shard}.tar").write_bytes(tar_bytes(members))
    return sorted(folder.iterdir())


def fields(**settings):
    return {"image": Image(".jpg", size=(32, 40), fit="crop", **settings), "label": Label(".cls")}


def by_key(batches):
    return {key: image for batch in batches for key, image in zip(batch["__key__"], batch["image"], strict=True)}


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_pictures_come_finished_however_their_bytes_travel(shards, make_loader, layout):
    plain = by_key(make_loader(shards, fields()))
    found = by_key(make_loader(shards, fields(gpu_transform=GpuTransform("float16"), layout=layout)))
    assert len(found) == 24
    for key, image in found.items():
        assert image.dtype == torch.float16
        assert image.shape == (3, 32, 40)
        assert torch.allclose(image.float(), plain[key] / 255, atol=1e-3)


def test_a_sample_has_the_same_fate_whatever_the_batch_the_workers_and_the_rank(shards, make_loader):
    wanted = by_key(make_loader(shards, fields(gpu_transform=FINISH), shuffle=True, seed=3))
    others = [
        make_loader(shards, fields(gpu_transform=FINISH), batch_size=5, shuffle=True, seed=3, num_workers=1),
        make_loader(shards, fields(gpu_transform=FINISH), batch_size=6, shuffle=True, seed=3, rank=1, world_size=2),
    ]
    for loader in others:
        found = by_key(loader)
        assert found
        assert all(torch.allclose(image.float(), wanted[key].float(), atol=2e-3) for key, image in found.items())


def test_each_epoch_has_another_fate_and_a_resumed_one_the_same(shards, make_loader):
    loader = make_loader(shards, fields(gpu_transform=FINISH), shuffle=True)
    first, second = by_key(loader), by_key(loader)
    assert not any(torch.allclose(first[key], second[key], atol=1e-2) for key in first)
    again = make_loader(shards, fields(gpu_transform=FINISH), shuffle=True)
    again.set_epoch(1)
    assert all(torch.allclose(image, second[key], atol=2e-3) for key, image in by_key(again).items())


def test_a_sample_that_a_sampler_picks_twice_has_two_fates(shards, make_loader):
    picks = [3, 3, 5, 3]
    batches = [list(make_loader(shards, fields(gpu_transform=FINISH), 2, sampler=picks)) for _ in range(2)]
    images = [torch.cat([batch["image"] for batch in epoch]) for epoch in batches]
    assert keys_of(batches[0]) == ["003", "003", "005", "003"]
    assert torch.allclose(images[0], images[1], atol=2e-3)
    assert not torch.allclose(images[0][0], images[0][1], atol=1e-2)


def test_samples_that_take_the_place_of_bad_ones_are_finished_as_themselves(tmp_path, make_loader):
    members = [(f"{number}.jpg", simplejpeg.encode_jpeg(make_image(50, 70, number))) for number in range(4)]
    members[1] = ("1.jpg", members[1][1][:400])
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    image = {"image": Image(".jpg", size=(32, 40), gpu_transform=FINISH)}
    (batch,) = make_loader(tmp_path / "a.tar", image, 4, on_error="replace", max_bad_fraction=1.0)
    assert batch["__key__"] == ["0", "2", "2", "3"]
    assert torch.allclose(batch["image"][1], batch["image"][2], atol=2e-3)


def test_finished_batches_do_not_hold_their_slab(shards, make_loader):
    kept = list(
        make_loader(shards, fields(gpu_transform=GpuTransform()), 2)
    )  # more of them than there are slabs, and not copied
    assert len({batch["image"].data_ptr() for batch in kept}) == 12


def test_a_loader_with_a_finish_goes_when_nobody_wants_it(shards):
    loader = penstock.Loader(shards, fields(gpu_transform=GpuTransform()), 8, num_workers=0)
    for _ in loader:
        pass
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None


def test_arrays_cannot_be_finished_nor_kept_in_place_without_torch(shards, make_loader):
    with pytest.raises(SettingError, match="need tensors"):
        make_loader(shards, fields(gpu_transform=GpuTransform()), device="numpy")
    with pytest.raises(SettingError, match="static_buffers needs tensors"):
        make_loader(shards, fields(), device="numpy", static_buffers=True)


def half(sample, rng):
    return {**sample, "image": sample["image"][:, ::2, ::2]}


def mirrored(sample, rng):
    return {**sample, "image": sample["image"][:, :, ::-1]}


def test_a_transform_comes_first_and_must_leave_the_shape(shards, make_loader):
    plain = by_key(make_loader(shards, fields()))
    found = by_key(make_loader(shards, fields(gpu_transform=GpuTransform()), transform=mirrored))
    assert all(torch.allclose(image, plain[key].flip(2) / 255, atol=1e-5) for key, image in found.items())
    with pytest.raises(SettingError, match=r"image is torch.uint8\[3, 16, 20\] after the transform"):
        list(make_loader(shards, fields(gpu_transform=GpuTransform()), transform=half))


# -- the same addresses ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Ten arrays, each filled with its number."""
    path = tmp_path_factory.mktemp("arrays") / "a.tar"
    path.write_bytes(tar_bytes([(f"{n}.npy", encode_npy(np.full((4, 5), n, np.float32))) for n in range(10)]))
    return path


def test_static_batches_come_in_the_same_memory_in_every_epoch(numbers, make_loader):
    loader = make_loader(numbers, {"x": Array(".npy")}, 4, static_buffers=True)
    addresses, seen = set(), []
    for _ in range(2):
        for batch in loader:
            addresses.add(batch["x"].data_ptr())
            seen += batch["x"][:, 0, 0].tolist()
            assert batch["x"][:, 0, 0].tolist() == [float(key) for key in batch["__key__"]]
    assert len(addresses) == 1
    assert seen == [float(n) for n in range(10)] * 2


def test_a_static_batch_is_overwritten_by_the_next_and_an_ordinary_one_is_not(numbers, make_loader):
    for static in (True, False):
        first, second, _ = list(make_loader(numbers, {"x": Array(".npy")}, 4, static_buffers=static))
        assert (first["x"].data_ptr() == second["x"].data_ptr()) == static
        assert (first["x"][1, 0, 0] == 1) == (not static)


def test_a_static_batch_is_whole_in_the_layout_it_was_finished_in(shards, make_loader):
    finish = GpuTransform("bfloat16", layout="channels_last")
    plain = by_key(make_loader(shards, fields(gpu_transform=finish)))
    for batch in make_loader(shards, fields(gpu_transform=finish), static_buffers=True):
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert all(torch.equal(image, plain[key]) for key, image in by_key([batch]).items())


def test_a_batch_that_outgrows_its_place_is_whole_and_said_to_be_elsewhere(numbers, make_loader, caplog):
    loader = make_loader(
        numbers, {"x": Array(".npy")}, None, batch_sampler=[[0, 1], [2, 3, 4], [5]], static_buffers=True
    )
    seen = [batch["x"][:, 0, 0].tolist() for batch in loader]
    assert seen == [[0, 1], [2, 3, 4], [5]]
    assert "its address is another" in caplog.text


# -- as a file ---------------------------------------------------------------------------------------------------------


def test_a_config_has_finishes_too_and_says_what_is_wrong_with_them(shards):
    image = {
        "type": "image",
        "suffix": ".jpg",
        "size": [32, 40],
        "gpu_transform": {"dtype": "float16", "crop": [0.3, 1.0]},
    }
    config = {
        "shards": [str(path) for path in shards],
        "fields": {"image": image},
        "batch_size": 8,
        "static_buffers": True,
    }
    with pytest.raises(SettingError, match=r"fields\.image\.gpu_transform.*needs a size"):
        penstock.Loader.from_config(config)
    image["gpu_transform"]["size"] = 24
    loader = penstock.Loader.from_config({**config, "engine": {"executor": "thread"}, "num_workers": 1})
    assert {batch["image"].shape for batch in loader} == {(8, 3, 24, 24)}
    loader.close()
