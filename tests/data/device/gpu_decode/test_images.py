"""JPEGs left to the card, with a decoder that stands in for it: which ones go there, what comes of those it refuses."""

import io
import logging

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image as Pillow

import penstock
from penstock.data.device.device_stage import DevicePlan
from penstock.data.device.gpu_decode import decoders
from penstock.data.device.gpu_decode import images as pictures
from penstock.data.device.gpu_decode import initial_split as share
from penstock.data.device.gpu_decode.initial_split import auto_limit, balanced_fraction
from penstock.data.fields import GpuTransform, Image
from penstock.data.fields.base import EncodedImage
from penstock.data.fields.gpu_image import GpuDecodedImage
from penstock.errors import DecodeError, SampleError, SettingError
from penstock.shards.codecs.images import decode_jpeg
from penstock.testing import make_image, tar_bytes


class StandIn:
    """Decodes on the CPU, and refuses what it is told to."""

    name = "a stand-in"

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
def card(monkeypatch):
    """Puts a stand-in where the card's decoder would be."""

    def put(**settings):
        standing_in = StandIn(**settings)
        monkeypatch.setattr(decoders, "choose_decoder", lambda device: standing_in)
        return standing_in

    return put


def jpeg(number, shape=(90, 120)):
    return simplejpeg.encode_jpeg(make_image(*shape, number), quality=90)


def saved(number, kind, **settings):
    file = io.BytesIO()
    settings.setdefault("quality", 90)
    Pillow.fromarray(make_image(90, 120, number)).convert(settings.pop("mode", "RGB")).save(file, kind, **settings)
    return file.getvalue()


def broken(data):
    """Whole in its header, and cut short behind it."""
    return data[: len(data) // 2] + b"\xff\xd9"


@pytest.fixture
def shard(tmp_path):
    def write(*pictures, suffix=".jpg"):
        members = [(f"{number}{suffix}", data) for number, data in enumerate(pictures)]
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


# -- the same pictures ------------------------------------------------------------


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_pictures_are_those_that_the_cores_make_in_full_quality(card, shard, make_loader, fit, layout):
    path = shard(*(jpeg(number, shape) for number, shape in enumerate([(90, 120), (120, 90), (48, 64), (60, 200)] * 2)))
    decoder = card()
    found = images(make_loader(path, field(fit=fit, layout=layout), 4))
    assert sum(map(len, decoder.calls)) == 8
    expected = images(make_loader(path, field(fit=fit, layout=layout, decode="cpu"), 4))
    assert found.shape == expected.shape
    assert psnr_db(found, expected) > 45


def test_they_are_finished_like_any_others(card, shard, make_loader):
    card()
    path = shard(*(jpeg(number) for number in range(6)))
    finish = GpuTransform("float16", size=24, crop="random", flip=0.5)
    found = images(make_loader(path, field(gpu_transform=finish), 3))
    expected = images(make_loader(path, field(gpu_transform=finish, decode="cpu"), 3))
    assert found.dtype == torch.float16
    assert psnr_db(255 * found, 255 * expected) > 45


def test_worker_processes_leave_them_to_the_card_too(card, shard, make_loader):
    decoder = card()
    path = shard(*(jpeg(number) for number in range(8)))
    loader = make_loader(path, field(), 4, executor="process", num_workers=1)
    first, second = images(loader), images(loader)
    assert torch.equal(first, second)
    assert sum(map(len, decoder.calls)) == 16
    assert psnr_db(first, images(make_loader(path, field(decode="cpu"), 4))) > 45


def test_large_batches_are_decoded_in_portions(card, shard, make_loader, monkeypatch):
    monkeypatch.setattr(pictures, "PORTION_PIXELS", 3 * 90 * 120)
    decoder = card()
    assert len(images(make_loader(shard(*(jpeg(number) for number in range(8))), field(), 8))) == 8
    assert [len(call) for call in decoder.calls] == [3, 3, 2]


# -- what the card does not get ------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        saved(1, "JPEG", progressive=True),
        saved(1, "JPEG", mode="CMYK"),
        saved(1, "JPEG", keep_rgb=True),
        jpeg(1, (300, 400)) + bytes(16384),
    ],
    ids=["progressive", "cmyk", "rgb as such", "longer than its pixels"],
)
def test_a_jpeg_that_is_not_for_the_card_is_decoded_by_the_cores_in_its_place(card, shard, make_loader, odd):
    path = shard(jpeg(0), odd, jpeg(2))
    decoder = card()
    found = images(make_loader(path, field(), 3))
    assert odd not in [each for call in decoder.calls for each in call]
    assert sum(map(len, decoder.calls)) == 2
    expected = images(make_loader(path, field(decode="cpu"), 3))
    assert torch.equal(found[1], expected[1])
    assert psnr_db(found, expected) > 45


def test_pictures_that_are_no_jpegs_are_decoded_by_the_cores(card, shard, make_loader):
    decoder = card()
    path = shard(*(saved(number, "PNG") for number in range(3)), suffix=".png")
    found = images(make_loader(path, field(), 3))
    assert not decoder.calls
    assert torch.equal(found, images(make_loader(path, field(decode="cpu"), 3)))


def test_grey_jpegs_go_to_the_card():
    data = memoryview(saved(1, "JPEG", mode="L"))
    slot = np.zeros((3, 48, 64), np.uint8)
    assert GpuDecodedImage(field()["image"]).decode_into(".jpg", data, slot) == EncodedImage(len(data), 90, 120)
    assert bytes(slot.reshape(-1)[: len(data)]) == bytes(data)


def test_a_share_of_the_pictures_goes_to_the_card_and_always_the_same_ones():
    slot = np.zeros((3, 48, 64), np.uint8)
    data = [memoryview(jpeg(number, (16, 16))) for number in range(64)]

    def sent(share):
        half = GpuDecodedImage(field()["image"], share)
        return {at for at, each in enumerate(data) if half.decode_into(".jpg", each, slot) is not None}

    assert sent(0.5) == sent(0.5)
    assert 16 < len(sent(0.5)) < 48
    assert sent(0.25) < sent(0.5) < sent(1.0) == set(range(64))
    assert sent(0.0) == set()


# -- what the card refuses ------------------------------------------------------------


def test_a_picture_that_the_card_refuses_is_found_and_decoded_by_the_cores(card, shard, make_loader):
    odd = jpeg(1)
    decoder = card(refuses=lambda jpegs: odd in jpegs)
    path = shard(jpeg(0), odd, jpeg(2))
    found = images(make_loader(path, field(), 3))
    assert [len(call) for call in decoder.calls] == [3, 1, 1, 1]
    expected = images(make_loader(path, field(decode="cpu"), 3))
    assert torch.equal(found[1], expected[1])
    assert psnr_db(found, expected) > 45


def test_when_the_card_has_no_memory_the_cores_decode_and_it_is_said_once(card, shard, make_loader, caplog):
    card(refuses=lambda jpegs: True, error="Error while decoding JPEG images: CUDA out of memory. Tried to allocate")
    path = shard(*(jpeg(number) for number in range(8)))
    found = images(make_loader(path, field(), 2))
    assert torch.equal(found, images(make_loader(path, field(decode="cpu"), 2)))
    assert caplog.text.count("out of memory on the card") == 1


def test_a_picture_that_the_card_cannot_resize_is_decoded_by_the_cores(card, shard, make_loader, monkeypatch, caplog):
    def unable(*_args, **_settings):
        raise RuntimeError("interpolation parameters can not be handled")

    card()
    monkeypatch.setattr(torch.nn.functional, "interpolate", unable)
    path = shard(*(jpeg(number) for number in range(4)))
    found = images(make_loader(path, field(), 2))
    assert torch.equal(found, images(make_loader(path, field(decode="cpu"), 2)))
    assert caplog.text.count("can not be handled while decoding") == 1


def test_a_picture_that_nobody_can_decode_is_named(card, shard, make_loader):
    card()
    with pytest.raises(DecodeError, match=r"JPEG decoder reports.*a\.tar") as caught:
        images(make_loader(shard(jpeg(0), broken(jpeg(1)), jpeg(2)), field(), 3))
    assert caught.value.member == "1"
    assert caught.value.offset is not None


def test_it_is_left_out_or_replaced_and_the_books_are_right(card, shard, make_loader, tmp_path):
    card()
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


def test_a_batch_of_nothing_but_such_pictures_is_an_error(card, shard, make_loader):
    card()
    path = shard(jpeg(0), jpeg(1), broken(jpeg(2)), broken(jpeg(3)))
    with pytest.raises(SampleError, match="all 2 samples of a batch are bad"):
        images(make_loader(path, field(), 2, on_error="skip", max_bad_fraction=1.0))


# -- who decodes ------------------------------------------------------------


def test_both_sides_finish_together_and_auto_leaves_small_gains_alone():
    assert balanced_fraction(300, 100) == 0.75
    assert auto_limit(0.1) == 0
    assert auto_limit(0.4) == 0.4
    assert auto_limit(0.9) == 0.5


def test_worker_processes_follow_when_the_share_is_turned(card, shard, make_loader, monkeypatch):
    monkeypatch.setattr(share, "balanced_fraction", lambda card_rate, cores_rate: 1.0)
    decoder = card()
    path = shard(*(jpeg(number) for number in range(8)))
    loader = make_loader(path, field(decode="hybrid"), 4, executor="process", num_workers=1)
    first = images(loader)
    decoder.calls.clear()
    gpu_fraction = loader._device_plan.fields["image"].gpu_fraction
    gpu_fraction.value = 0.0
    second = images(loader)
    assert not decoder.calls
    gpu_fraction.value = 1.0
    assert torch.equal(images(loader), first)
    assert sum(map(len, decoder.calls)) == 8
    assert psnr_db(first, second) > 45


def test_a_later_engine_goes_on_with_the_share_of_the_last(card, shard, make_loader, monkeypatch):
    monkeypatch.setattr(share, "balanced_fraction", lambda card_rate, cores_rate: 1.0)
    decoder = card()
    loader = make_loader(shard(*(jpeg(number) for number in range(8))), field(decode="hybrid"), 4)
    images(loader)
    loader.close()
    decoder.calls.clear()
    images(loader)
    assert sum(map(len, decoder.calls)) == 8


@pytest.mark.parametrize("how", ["hybrid", "auto"])
def test_shares_are_measured_on_the_data_and_said(card, shard, make_loader, caplog, how):
    card()
    caplog.set_level(logging.INFO, "penstock")
    path = shard(*(jpeg(number) for number in range(8)))
    found = images(make_loader(path, field(decode=how), 4))
    assert psnr_db(found, images(make_loader(path, field(decode="cpu"), 4))) > 45
    assert f"decode={how!r}: " in caplog.text
    assert "% of the pictures to the card" in caplog.text


def test_where_there_is_no_card_auto_means_the_cores_and_gpu_is_refused(shard, make_loader):
    path = shard(*(jpeg(number) for number in range(4)))
    found = images(make_loader(path, field(decode="auto"), 4))
    assert torch.equal(found, images(make_loader(path, field(decode="cpu"), 4)))
    for how in ("gpu", "hybrid"):
        with pytest.raises(SettingError, match="device='cpu' decodes no JPEGs"):
            images(make_loader(path, field(decode=how), 4))


def test_a_transform_needs_the_pixels_itself(shard):
    with pytest.raises(SettingError, match="needs pixels there"):
        penstock.Loader(shard(jpeg(0)), field(), 1, transform=lambda sample, rng: sample)


@pytest.mark.parametrize(("decode", "threads"), [("cpu", 0), ("auto", 0), ("hybrid", 2), ("gpu", 2)])
def test_cores_are_left_to_the_card_s_threads_where_it_is_sure_to_decode(decode, threads):
    fields = {"image": Image(".jpg", size=64, decode=decode)}
    assert DevicePlan(fields, "cuda", 0, transformed=False).senders == threads
