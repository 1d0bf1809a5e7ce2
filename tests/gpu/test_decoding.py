"""`make test-gpu`: JPEGs decoded by a real GPU, compared with those that the CPU decodes."""

import importlib
import io

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image as Pillow
from tests.support.loader_helpers import loader_settings

import penstock
from penstock.data.device.gpu_decode import decoders
from penstock.data.device.gpu_decode.decoders import NvImageCodecDecoder, TorchcodecDecoder, TorchvisionDecoder
from penstock.data.fields import GpuTransform, Image
from penstock.testing import make_image, tar_bytes

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)
pytest.importorskip("torchvision")

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of torchvision

SHAPES = [(375, 500), (500, 375), (480, 480), (600, 900)]


def jpeg(number, sampling="420"):
    pixels = make_image(*SHAPES[number % len(SHAPES)], number)
    return simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling=sampling)


def saved(number, **settings):
    file = io.BytesIO()
    pixels = Pillow.fromarray(make_image(375, 500, number)).convert(settings.pop("mode", "RGB"))
    pixels.save(file, "JPEG", quality=90, **settings)
    return file.getvalue()


@pytest.fixture
def shard(tmp_path):
    def write(*images):
        path = tmp_path / "a.tar"
        path.write_bytes(tar_bytes([(f"{number:03d}.jpg", data) for number, data in enumerate(images)]))
        return path

    return write


def loader_of(path, batch_size=8, *, fit="pad", quality="exact", decode="gpu", gpu_transform=None, **settings):
    image = Image(".jpg", size=256, fit=fit, quality=quality, decode=decode, gpu_transform=gpu_transform)
    return penstock.Loader(
        path, {"image": image}, batch_size, **loader_settings(**{"device": "cuda", "num_workers": 2, **settings})
    )


def images(loader):
    found = torch.cat([batch["image"].cpu() for batch in loader])
    loader.close()
    return found


def psnr_db(found, expected):
    error = (found.float() - expected.float()).square().mean()
    return float("inf") if error == 0 else float(10 * torch.log10(255**2 / error))


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_images_of_the_gpu_equal_those_of_the_cpu(shard, fit):
    path = shard(*(jpeg(number, sampling) for number in range(16) for sampling in ("420", "444")))
    found = images(loader_of(path, fit=fit))
    expected = images(loader_of(path, fit=fit, decode="cpu", device="cpu"))
    each = [psnr_db(one, other) for one, other in zip(found, expected, strict=True)]
    print(f"{fit}: PSNR between decoders {min(each):.1f} to {max(each):.1f} dB")
    assert min(each) > 35


def test_jpegs_that_do_not_suit_the_gpu_arrive_too(shard):
    unsuitable = [saved(1, progressive=True), saved(2, mode="CMYK"), saved(3, mode="L"), saved(4, keep_rgb=True)]
    path = shard(jpeg(0), *unsuitable, jpeg(5))
    found, expected = images(loader_of(path, 6)), images(loader_of(path, 6, decode="cpu", device="cpu"))
    assert min(psnr_db(one, other) for one, other in zip(found, expected, strict=True)) > 35


def test_the_neighbours_of_a_damaged_image_are_complete(shard):
    whole = jpeg(1)
    path = shard(jpeg(0), whole[: len(whole) // 2] + b"\xff\xd9", jpeg(2))
    found = images(loader_of(path, 3, on_error="skip", max_bad_fraction=1.0))
    expected = images(loader_of(shard(jpeg(0), jpeg(2)), 2, decode="cpu", device="cpu"))
    assert psnr_db(found[0], expected[0]) > 35
    assert psnr_db(found[-1], expected[-1]) > 35


def test_batches_are_complete_while_the_gpu_is_busy_and_no_thread_synchronises(shard):
    path = shard(*(jpeg(number) for number in range(48)))
    expected = images(loader_of(path, decode="cpu", device="cpu"))
    loader = loader_of(path, shuffle=True, gpu_transform=GpuTransform("float32"))
    matrix = torch.randn(2048, 2048, device="cuda")
    for _ in loader:
        pass
    kept = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            for batch in loader:
                for _ in range(4):
                    matrix = torch.nn.functional.normalize(matrix @ matrix)
                kept.append((batch["__key__"], batch["image"].clone()))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for keys, image in kept:
        wanted = expected[[int(key) for key in keys]]
        assert psnr_db(255 * image.cpu(), wanted) > 35
    loader.close()


@pytest.mark.parametrize("decode", ["hybrid", "auto"])
def test_gpu_and_cpu_share_the_images(shard, decode, caplog):
    caplog.set_level("INFO", "penstock")
    path = shard(*(jpeg(number) for number in range(32)))
    found = images(loader_of(path, decode=decode))
    expected = images(loader_of(path, decode="cpu", device="cpu"))
    assert min(psnr_db(one, other) for one, other in zip(found, expected, strict=True)) > 35
    assert "of the images to the GPU" in caplog.text
    print([record.message for record in caplog.records if "GPU" in record.message])


def test_without_gpu_memory_the_cpu_decodes(shard, caplog):
    path = shard(*(jpeg(number) for number in range(16)))
    expected = images(loader_of(path, decode="cpu", device="cpu"))
    loader = loader_of(path)
    batches = iter(loader)
    found = [next(batches)["image"].cpu()]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (4 << 20)) / total)
    try:
        for batch in batches:
            found.append(batch["image"].cpu())
    except torch.OutOfMemoryError:
        pytest.skip("there was no memory for the batch itself either")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert psnr_db(torch.cat(found), expected) > 35
    loader.close()


def test_gpu_memory_stays_within_the_documented_limit(shard):
    loader = loader_of(shard(*(jpeg(number) for number in range(32))), 16)
    peaks = []
    for _ in range(4):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        for batch in loader:
            batch["image"].sum()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    pixels = sum(height * width for height, width in SHAPES) * 4
    assert max(peaks[1:]) < 8 * 3 * pixels + 6 * batch["image"].nbytes + (64 << 20)
    assert np.ptp(peaks[1:]) < 64 << 20
    loader.close()


def test_images_are_right_while_the_fraction_changes(shard):
    path = shard(*(jpeg(number) for number in range(32)))
    expected = images(loader_of(path, decode="cpu", device="cpu"))
    loader = loader_of(path, decode="hybrid")
    for fraction in (0.0, 0.5, 1.0, 0.25):
        found = []
        for batch in loader:
            loader._device_plan.fields["image"].gpu_fraction.value = fraction
            found.append(batch["image"].cpu())
        assert min(psnr_db(one, other) for one, other in zip(torch.cat(found), expected, strict=True)) > 35
    loader.close()


OTHER_DECODERS = {
    "nvimagecodec": ("nvidia.nvimgcodec", NvImageCodecDecoder),
    "torchcodec": ("torchcodec", TorchcodecDecoder),
}


@pytest.fixture(params=OTHER_DECODERS)
def other(request):
    """Package and decoder of an alternative to torchvision."""
    package, make = OTHER_DECODERS[request.param]
    try:
        importlib.import_module(package)
        return package, make(torch.device("cuda", torch.cuda.current_device()))
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        pytest.skip(f"{package} does not work here: {type(error).__name__}")


def test_other_decoders_give_the_same_images(other):
    data = [np.frombuffer(jpeg(number), np.uint8) for number in range(8)]
    found, expected = other[1].decode(data), TorchvisionDecoder(torch.device("cuda", 0)).decode(data)
    torch.cuda.synchronize()
    for one, same in zip(found, expected, strict=True):
        assert one.shape == same.shape
        assert psnr_db(one, same) > 35


def test_a_loader_uses_another_decoder_where_torchvision_is_missing(other, shard, monkeypatch):
    package, _ = other
    monkeypatch.setattr(decoders, "_DECODERS", {package: decoders._DECODERS[package]})
    path = shard(*(jpeg(number) for number in range(24)), jpeg(1)[:2000] + b"\xff\xd9", *(jpeg(n) for n in range(7)))
    loader = loader_of(path, on_error="skip", max_bad_fraction=1.0, shuffle=True)
    expected = images(loader_of(path, decode="cpu", device="cpu", on_error="replace", max_bad_fraction=1.0))
    for _ in range(3):
        seen = {}
        for batch in loader:
            seen |= dict(zip(batch["__key__"], batch["image"].cpu(), strict=True))
        assert len(seen) >= 31
        whole = [key for key in seen if key != "024"]
        assert min(psnr_db(seen[key], expected[int(key)]) for key in whole) > 35
    loader.close()
