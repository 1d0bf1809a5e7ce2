"""Batches whose JPEGs the GPU decodes, with a fake decoder: which go to the GPU, and what happens to refused ones."""

import io
import logging

import pytest
import simplejpeg
import torch
from PIL import Image as Pillow

import penstock
from penstock.data.device.device_stage import DevicePlan
from penstock.data.device.gpu_decode import batch_decoder, decode_split, decoders
from penstock.data.fields import GpuTransform, Image
from penstock.errors import DecodeError, SettingError
from penstock.shards.codecs.images import decode_jpeg
from penstock.testing import make_image, tar_bytes


class FakeDecoder:
    """A GPU decoder that decodes on the CPU, and refuses JPEGs as the test wants."""

    name = "a fake decoder"

    def __init__(self, refuses=lambda jpegs: False, error="refused"):
        self.refuses, self.error = refuses, error
        self.calls = []

    def decode(self, jpegs):
        self.calls.append([bytes(jpeg) for jpeg in jpegs])
        if self.refuses(self.calls[-1]):
            raise RuntimeError(self.error)
        try:
            return [torch.from_numpy(decode_jpeg(bytes(jpeg)).transpose(2, 0, 1).copy()) for jpeg in jpegs]
        except DecodeError as error:
            raise RuntimeError(str(error)) from error


@pytest.fixture
def fake_gpu(monkeypatch):
    """Return a function that installs a fake decoder in place of the GPU's."""

    def install(**settings):
        decoder = FakeDecoder(**settings)
        monkeypatch.setattr(decoders, "choose_decoder", lambda device: decoder)
        return decoder

    return install


def jpeg(number, shape=(90, 120)):
    return simplejpeg.encode_jpeg(make_image(*shape, number), quality=90)


def encoded(number, kind, **settings):
    file = io.BytesIO()
    settings.setdefault("quality", 90)
    Pillow.fromarray(make_image(90, 120, number)).convert(settings.pop("mode", "RGB")).save(file, kind, **settings)
    return file.getvalue()


def broken(data):
    """Return a JPEG with a whole header that is truncated behind it."""
    return data[: len(data) // 2] + b"\xff\xd9"


@pytest.fixture
def shard(tmp_path):
    def write(*images, suffix=".jpg"):
        members = [(f"{number}{suffix}", data) for number, data in enumerate(images)]
        (tmp_path / "a.tar").write_bytes(tar_bytes(members))
        return tmp_path / "a.tar"

    return write


def field(**settings):
    settings = {"size": (48, 64), "quality": "exact", "decode": "gpu", **settings}
    return {"image": Image((".jpg", ".png"), **settings)}


def images(loader):
    return torch.cat([batch["image"] for batch in loader])


def psnr_db(found, expected):
    error = (found.float() - expected.float()).square().mean()
    return float("inf") if error == 0 else float(10 * torch.log10(255**2 / error))


# -- the same images ------------------------------------------------------------


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_images_equal_those_of_the_cpu_in_full_quality(fake_gpu, shard, make_loader, fit, layout):
    path = shard(*(jpeg(number, shape) for number, shape in enumerate([(90, 120), (120, 90), (48, 64), (60, 200)] * 2)))
    decoder = fake_gpu()
    found = images(make_loader(path, field(fit=fit, layout=layout), 4))
    assert sum(map(len, decoder.calls)) == 8
    expected = images(make_loader(path, field(fit=fit, layout=layout, decode="cpu"), 4))
    assert found.shape == expected.shape
    assert psnr_db(found, expected) > 45


def test_images_that_the_gpu_decodes_are_transformed_like_others(fake_gpu, shard, make_loader):
    fake_gpu()
    path = shard(*(jpeg(number) for number in range(6)))
    transform = GpuTransform("float16", size=24, crop="random", flip=0.5)
    found = images(make_loader(path, field(gpu_transform=transform), 3))
    expected = images(make_loader(path, field(gpu_transform=transform, decode="cpu"), 3))
    assert found.dtype == torch.float16
    assert psnr_db(255 * found, 255 * expected) > 45


def test_worker_processes_leave_jpegs_to_the_gpu_too(fake_gpu, shard, make_loader):
    decoder = fake_gpu()
    path = shard(*(jpeg(number) for number in range(8)))
    loader = make_loader(path, field(), 4, executor="process", num_workers=1)
    first, second = images(loader), images(loader)
    assert torch.equal(first, second)
    assert sum(map(len, decoder.calls)) == 16
    assert psnr_db(first, images(make_loader(path, field(decode="cpu"), 4))) > 45


def test_large_batches_are_decoded_in_chunks(fake_gpu, shard, make_loader, monkeypatch):
    monkeypatch.setattr(batch_decoder, "CHUNK_PIXELS", 3 * 90 * 120)
    decoder = fake_gpu()
    assert len(images(make_loader(shard(*(jpeg(number) for number in range(8))), field(), 8))) == 8
    assert [len(call) for call in decoder.calls] == [3, 3, 2]


# -- what is not left to the GPU ------------------------------------------------------------


@pytest.mark.parametrize(
    "unsuitable",
    [
        encoded(1, "JPEG", progressive=True),
        encoded(1, "JPEG", mode="CMYK"),
        encoded(1, "JPEG", keep_rgb=True),
        jpeg(1, (300, 400)) + bytes(16384),
    ],
    ids=["progressive", "cmyk", "rgb without conversion", "longer than its pixels"],
)
def test_an_unsuitable_jpeg_is_decoded_on_the_cpu_into_its_own_slot(fake_gpu, shard, make_loader, unsuitable):
    path = shard(jpeg(0), unsuitable, jpeg(2))
    decoder = fake_gpu()
    found = images(make_loader(path, field(), 3))
    assert unsuitable not in [each for call in decoder.calls for each in call]
    assert sum(map(len, decoder.calls)) == 2
    expected = images(make_loader(path, field(decode="cpu"), 3))
    assert torch.equal(found[1], expected[1])
    assert psnr_db(found, expected) > 45


def test_images_that_are_not_jpegs_are_decoded_on_the_cpu(fake_gpu, shard, make_loader):
    decoder = fake_gpu()
    path = shard(*(encoded(number, "PNG") for number in range(3)), suffix=".png")
    found = images(make_loader(path, field(), 3))
    assert not decoder.calls
    assert torch.equal(found, images(make_loader(path, field(decode="cpu"), 3)))


# -- what the GPU refuses ------------------------------------------------------------


def test_a_jpeg_that_the_gpu_refuses_is_found_and_decoded_on_the_cpu(fake_gpu, shard, make_loader):
    unsuitable = jpeg(1)
    decoder = fake_gpu(refuses=lambda jpegs: unsuitable in jpegs)
    path = shard(jpeg(0), unsuitable, jpeg(2))
    found = images(make_loader(path, field(), 3))
    assert [len(call) for call in decoder.calls] == [3, 1, 1, 1]
    expected = images(make_loader(path, field(decode="cpu"), 3))
    assert torch.equal(found[1], expected[1])
    assert psnr_db(found, expected) > 45


def test_when_the_gpu_is_out_of_memory_the_cpu_decodes_and_warns_once(fake_gpu, shard, make_loader, caplog):
    fake_gpu(
        refuses=lambda jpegs: True, error="Error while decoding JPEG images: CUDA out of memory. Tried to allocate"
    )
    path = shard(*(jpeg(number) for number in range(8)))
    found = images(make_loader(path, field(), 2))
    assert torch.equal(found, images(make_loader(path, field(decode="cpu"), 2)))
    assert caplog.text.count("the GPU was out of memory while decoding") == 1


def test_images_that_the_gpu_cannot_resize_are_decoded_on_the_cpu(fake_gpu, shard, make_loader, monkeypatch, caplog):
    def unable(*_args, **_settings):
        raise RuntimeError("interpolation parameters can not be handled")

    fake_gpu()
    monkeypatch.setattr(torch.nn.functional, "interpolate", unable)
    path = shard(*(jpeg(number) for number in range(4)))
    found = images(make_loader(path, field(), 2))
    assert torch.equal(found, images(make_loader(path, field(decode="cpu"), 2)))
    assert caplog.text.count("can not be handled) while decoding") == 1


def test_an_image_that_cannot_be_decoded_is_named(fake_gpu, shard, make_loader):
    fake_gpu()
    with pytest.raises(DecodeError, match=r"JPEG decoder reports.*a\.tar") as caught:
        images(make_loader(shard(jpeg(0), broken(jpeg(1)), jpeg(2)), field(), 3))
    assert caught.value.member == "1"
    assert caught.value.offset is not None


def test_an_image_that_cannot_be_decoded_is_skipped_or_replaced_and_counted(fake_gpu, shard, make_loader, tmp_path):
    fake_gpu()
    path = shard(jpeg(0), broken(jpeg(1)), jpeg(2), jpeg(3), broken(jpeg(4)))
    ledger = tmp_path / "bad.jsonl"
    loader = make_loader(
        path, field(), 4, on_error="skip", max_bad_fraction=1.0, bad_samples_path=str(ledger), drop_last=True
    )
    (batch,) = loader
    assert batch["__key__"] == ["0", "2", "3"]
    assert len(batch["image"]) == 3
    assert loader.stats().bad == 1
    assert ledger.read_text().count("\n") == 1
    (batch,) = make_loader(path, field(), 4, on_error="replace", max_bad_fraction=1.0, drop_last=True)
    assert batch["__key__"] == ["0", "2", "2", "3"]
    assert torch.equal(batch["image"][1], batch["image"][2])


def test_a_batch_of_only_such_images_is_left_out(fake_gpu, shard, make_loader):
    fake_gpu()
    path = shard(jpeg(0), jpeg(1), broken(jpeg(2)), broken(jpeg(3)))
    assert len(images(make_loader(path, field(), 2, on_error="skip", max_bad_fraction=1.0))) == 2


# -- where images are decoded ------------------------------------------------------------


def test_worker_processes_follow_a_change_of_the_fraction(fake_gpu, shard, make_loader, monkeypatch):
    monkeypatch.setattr(decode_split, "balanced_fraction", lambda gpu_rate, cpu_rate: 1.0)
    decoder = fake_gpu()
    path = shard(*(jpeg(number) for number in range(8)))
    loader = make_loader(path, field(decode="hybrid"), 4, executor="process", num_workers=1)
    first = images(loader)
    decoder.calls.clear()
    fraction = loader._device_plan.fields["image"].gpu_fraction
    fraction.value = 0.0
    second = images(loader)
    assert not decoder.calls
    fraction.value = 1.0
    images(loader)  # this epoch may have been begun before the change
    decoder.calls.clear()
    assert torch.equal(images(loader), first)
    assert sum(map(len, decoder.calls)) >= 8  # the next epoch may have been begun
    assert psnr_db(first, second) > 45


def test_a_later_engine_keeps_the_fraction_of_the_last(fake_gpu, shard, make_loader, monkeypatch):
    monkeypatch.setattr(decode_split, "balanced_fraction", lambda gpu_rate, cpu_rate: 1.0)
    decoder = fake_gpu()
    loader = make_loader(shard(*(jpeg(number) for number in range(8))), field(decode="hybrid"), 4)
    images(loader)
    loader.close()
    decoder.calls.clear()
    images(loader)
    assert sum(map(len, decoder.calls)) == 8


@pytest.mark.parametrize("decode", ["hybrid", "auto"])
def test_the_split_is_measured_on_the_data_and_logged(fake_gpu, shard, make_loader, caplog, decode):
    fake_gpu()
    caplog.set_level(logging.INFO, "penstock")
    path = shard(*(jpeg(number) for number in range(8)))
    found = images(make_loader(path, field(decode=decode), 4))
    assert psnr_db(found, images(make_loader(path, field(decode="cpu"), 4))) > 45
    assert f"decode={decode!r}: " in caplog.text
    assert "% of the images to the GPU" in caplog.text


def test_without_a_gpu_auto_decodes_on_the_cpu_and_gpu_is_refused(shard, make_loader):
    path = shard(*(jpeg(number) for number in range(4)))
    found = images(make_loader(path, field(decode="auto"), 4))
    assert torch.equal(found, images(make_loader(path, field(decode="cpu"), 4)))
    for decode in ("gpu", "hybrid"):
        with pytest.raises(SettingError, match="device='cpu' decodes no JPEGs"):
            images(make_loader(path, field(decode=decode), 4))


def test_decoding_on_the_gpu_cannot_be_combined_with_a_transform(shard):
    with pytest.raises(SettingError, match="needs pixels there"):
        penstock.Loader(shard(jpeg(0)), field(), 1, transform=lambda sample, rng: sample)


@pytest.mark.parametrize(("decode", "threads"), [("cpu", 0), ("auto", 0), ("hybrid", 2), ("gpu", 2)])
def test_cores_are_left_to_the_sender_threads_where_the_gpu_always_decodes(decode, threads):
    fields = {"image": Image(".jpg", size=64, decode=decode)}
    assert DevicePlan(fields, "cuda", 0, transformed=False).sender_threads == threads
