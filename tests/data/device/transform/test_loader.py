"""The transform of images through a whole loader, on the CPU."""

import gc
import weakref

import pytest
import simplejpeg
import torch
from tests.support.loader_helpers import keys_of

import penstock
from penstock.data.fields import GpuTransform, Image, Label
from penstock.errors import SettingError
from penstock.testing import make_image, tar_bytes

RANDOM = GpuTransform("float16", size=24, crop="random", flip=0.5, jitter=(0.2, 0.2, 0.2, 0.1))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """24 images in three shards, each with its number."""
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
def test_images_are_transformed_in_any_layout_of_the_field(shards, make_loader, layout):
    plain = by_key(make_loader(shards, fields()))
    found = by_key(make_loader(shards, fields(gpu_transform=GpuTransform("float16"), layout=layout)))
    assert len(found) == 24
    for key, image in found.items():
        assert image.dtype == torch.float16
        assert image.shape == (3, 32, 40)
        assert torch.allclose(image.float(), plain[key] / 255, atol=1e-3)


def test_the_choices_for_a_sample_do_not_depend_on_batch_size_workers_or_rank(shards, make_loader):
    expected = by_key(make_loader(shards, fields(gpu_transform=RANDOM), shuffle=True, seed=3))
    others = [
        make_loader(shards, fields(gpu_transform=RANDOM), batch_size=5, shuffle=True, seed=3, num_workers=1),
        make_loader(shards, fields(gpu_transform=RANDOM), batch_size=6, shuffle=True, seed=3, rank=1, world_size=2),
    ]
    for loader in others:
        found = by_key(loader)
        assert found
        assert all(torch.allclose(image.float(), expected[key].float(), atol=2e-3) for key, image in found.items())


def test_each_epoch_has_other_choices_and_a_resumed_epoch_the_same(shards, make_loader):
    loader = make_loader(shards, fields(gpu_transform=RANDOM), shuffle=True)
    first, second = by_key(loader), by_key(loader)
    assert not any(torch.allclose(first[key], second[key], atol=1e-2) for key in first)
    again = make_loader(shards, fields(gpu_transform=RANDOM), shuffle=True)
    again.set_epoch(1)
    assert all(torch.allclose(image, second[key], atol=2e-3) for key, image in by_key(again).items())


def test_a_sample_that_a_sampler_draws_twice_has_different_choices(shards, make_loader):
    indices = [3, 3, 5, 3]
    batches = [list(make_loader(shards, fields(gpu_transform=RANDOM), 2, sampler=indices)) for _ in range(2)]
    images = [torch.cat([batch["image"] for batch in epoch]) for epoch in batches]
    assert keys_of(batches[0]) == ["003", "003", "005", "003"]
    assert torch.allclose(images[0], images[1], atol=2e-3)
    assert not torch.allclose(images[0][0], images[0][1], atol=1e-2)


def test_samples_that_replace_bad_ones_have_their_own_choices(tmp_path, make_loader):
    members = [(f"{number}.jpg", simplejpeg.encode_jpeg(make_image(50, 70, number))) for number in range(4)]
    members[1] = ("1.jpg", members[1][1][:400])
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    image = {"image": Image(".jpg", size=(32, 40), gpu_transform=RANDOM)}
    (batch,) = make_loader(tmp_path / "a.tar", image, 4, on_error="replace", max_bad_fraction=1.0)
    assert batch["__key__"] == ["0", "2", "2", "3"]
    assert torch.allclose(batch["image"][1], batch["image"][2], atol=2e-3)


def test_transformed_batches_do_not_hold_their_slab(shards, make_loader):
    loader = make_loader(shards, fields(gpu_transform=GpuTransform()), 2)
    kept = list(loader)  # these are more batches than there are slabs, and they are not copied
    assert len({batch["image"].data_ptr() for batch in kept}) == 12


def test_a_loader_with_a_transform_is_freed_after_its_last_reference(shards):
    loader = penstock.Loader(shards, fields(gpu_transform=GpuTransform()), 8, num_workers=0)
    for _ in loader:
        pass
    alive = weakref.ref(loader)
    del loader
    gc.collect()
    assert alive() is None


def test_numpy_batches_are_refused_with_a_transform_or_static_buffers(shards, make_loader):
    with pytest.raises(SettingError, match="need tensors"):
        make_loader(shards, fields(gpu_transform=GpuTransform()), device="numpy")
    with pytest.raises(SettingError, match="static_buffers needs tensors"):
        make_loader(shards, fields(), device="numpy", static_buffers=True)


def halve(sample, rng):
    return {**sample, "image": sample["image"][:, ::2, ::2]}


def mirror(sample, rng):
    return {**sample, "image": sample["image"][:, :, ::-1]}


def test_a_sample_transform_runs_before_and_must_keep_the_shape(shards, make_loader):
    plain = by_key(make_loader(shards, fields()))
    found = by_key(make_loader(shards, fields(gpu_transform=GpuTransform()), transform=mirror))
    assert all(torch.allclose(image, plain[key].flip(2) / 255, atol=1e-5) for key, image in found.items())
    with pytest.raises(SettingError, match=r"image is torch.uint8\[3, 16, 20\] after the transform"):
        list(make_loader(shards, fields(gpu_transform=GpuTransform()), transform=halve))


def test_a_static_batch_keeps_the_memory_layout_of_the_transform(shards, make_loader):
    transform = GpuTransform("bfloat16", layout="channels_last")
    plain = by_key(make_loader(shards, fields(gpu_transform=transform)))
    for batch in make_loader(shards, fields(gpu_transform=transform), static_buffers=True):
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert all(torch.equal(image, plain[key]) for key, image in by_key([batch]).items())


def test_a_config_declares_transforms_and_its_errors_name_the_key(shards):
    transform = {"dtype": "float16", "crop": "random"}
    image = {"type": "image", "suffix": ".jpg", "size": [32, 40], "gpu_transform": transform}
    config = {
        "shards": [str(path) for path in shards],
        "fields": {"image": image},
        "batch_size": 8,
        "engine": {"executor": "thread", "static_buffers": True},
    }
    with pytest.raises(SettingError, match=r"fields\.image\.gpu_transform.*needs a size"):
        penstock.Loader.from_config(config)
    transform["size"] = 24
    loader = penstock.Loader.from_config({**config, "num_workers": 1})
    assert {batch["image"].shape for batch in loader} == {(8, 3, 24, 24)}
    loader.close()
