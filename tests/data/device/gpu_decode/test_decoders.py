"""The choice of the GPU decoder by what is installed; each package is replaced by a fake with the same arguments."""

import contextlib
import importlib.util
import logging
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import simplejpeg
import torch

from penstock.data.device.gpu_decode import decoders
from penstock.data.device.gpu_decode.batch_decoder import BatchDecoder
from penstock.data.device.gpu_decode.decoders import NvImageCodecDecoder, choose_decoder
from penstock.data.device.gpu_decode.placement import choose_placement
from penstock.data.fields import Image
from penstock.data.fields.base import EncodedImage
from penstock.errors import SettingError
from penstock.testing import make_image

REFUSED = b"refused"


class CodeStream:
    def __init__(self, array):
        self.data = bytes(array)


class Decoder:
    def __init__(self, device_id=-1, max_num_cpu_threads=0, backends=None, options=""):
        self.device_id, self.backends = device_id, backends
        self.calls = []

    def decode(self, srcs, *, images=None, params=None, cuda_stream=0):
        self.calls.append((params, cuda_stream))
        return [None if each.data == REFUSED else _planes(each.data) for each in srcs]


def _planes(data):
    return torch.from_numpy(np.ascontiguousarray(simplejpeg.decode_jpeg(data).transpose(2, 0, 1)))


@pytest.fixture
def gpu(monkeypatch):
    """Simulate a GPU, without a decoder; return the set of installed packages."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=4711))
    installed = set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in installed else None)
    return installed


@pytest.fixture
def codec(gpu, monkeypatch):
    module = ModuleType("nvidia.nvimgcodec")
    module.__version__ = "0.9.0"
    module.CodeStream, module.Decoder = CodeStream, Decoder
    module.Backend = lambda kind: f"backend {kind}"
    module.BackendKind = SimpleNamespace(HW_GPU_ONLY="hardware", GPU_ONLY="gpu", HYBRID_CPU_GPU="both", CPU_ONLY="cpu")
    module.ColorSpec, module.SampleFormat = SimpleNamespace(SRGB="rgb"), SimpleNamespace(P_RGB="planes")
    module.DecodeParams = lambda *, apply_exif_orientation, color_spec, sample_format: (
        apply_exif_orientation, color_spec, sample_format,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "nvidia", ModuleType("nvidia"))
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", module)
    gpu.add("nvidia.nvimgcodec")
    return module


def test_without_torchvision_nvimagecodec_decodes_and_is_logged(codec, caplog):
    caplog.set_level(logging.INFO, "penstock")
    decoder = choose_decoder("cuda:1")
    assert isinstance(decoder, NvImageCodecDecoder)
    assert decoder._decoder.device_id == 1
    assert "on cuda:1 by nvImageCodec 0.9.0 (nvJPEG)" in caplog.text


def test_torchvision_is_preferred(codec, gpu, monkeypatch):
    gpu.add("torchvision")
    monkeypatch.setitem(
        decoders._DECODERS, "torchvision", lambda device: SimpleNamespace(name=f"torchvision on {device}")
    )
    assert choose_decoder("cuda").name == "torchvision on cuda:0"


def test_torchcodec_decodes_to_rgb_if_it_is_new_enough(codec, gpu, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "penstock")
    calls = []

    def decode_jpeg(source, *, mode="RGB", output_dtype=torch.uint8, device="cpu"):
        calls.append((mode, str(device), len(source)))
        return [torch.zeros(3, 2, 2, dtype=torch.uint8) for _ in source]

    module = ModuleType("torchcodec.decoders")
    monkeypatch.setitem(sys.modules, "torchcodec", ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    monkeypatch.setattr(decoders, "version", lambda package: "0.17.0")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    stream = SimpleNamespace(wait_stream=lambda other: calls.append("waited"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    gpu.add("torchcodec")
    assert isinstance(choose_decoder("cuda"), NvImageCodecDecoder)  # its older versions decode no images
    assert "torchcodec cannot decode on cuda:0" in caplog.text
    module.decode_jpeg = decode_jpeg
    decoder = choose_decoder("cuda")
    assert decoder.name == "torchcodec 0.17.0 (nvJPEG)"
    assert len(decoder.decode([np.zeros(4, np.uint8), np.zeros(5, np.uint8)])) == 2
    assert calls == [("RGB", "cuda:0", 2), "waited"]


def test_without_any_decoder_the_error_names_all(gpu, monkeypatch):
    def missing(name):
        if "." in name:
            raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(SettingError, match="needs torchvision, torchcodec or nvImageCodec"):
        choose_decoder("cuda")


def test_nvimagecodec_decodes_to_planes_on_the_current_stream_and_never_on_the_cpu(codec):
    decoder = NvImageCodecDecoder(torch.device("cuda", 0))
    jpeg = simplejpeg.encode_jpeg(make_image(30, 40, 1))
    (found,) = decoder.decode([np.frombuffer(jpeg, np.uint8)])
    assert found.shape == (3, 30, 40)
    assert decoder._decoder.calls == [((False, "rgb", "planes"), 4711)]
    assert decoder._decoder.backends == ["backend hardware", "backend gpu", "backend both"]


def test_a_jpeg_that_nvimagecodec_refuses_is_decoded_on_the_cpu_after_one_call(codec):
    decoder = NvImageCodecDecoder(torch.device("cuda", 0))
    jpegs = [simplejpeg.encode_jpeg(make_image(48, 64, number)) for number in range(2)]
    array = np.zeros((3, 3, 48, 64), np.uint8)
    for slot, data in enumerate((jpegs[0], REFUSED, jpegs[1])):
        array[slot].reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
    encoded = np.array([EncodedImage(len(data), 48, 64) for data in (jpegs[0], REFUSED, jpegs[1])], np.int32)
    image = Image(".jpg", size=(48, 64), quality="exact")
    cpu = torch.device("cpu")
    out, failures = BatchDecoder(image, decoder, choose_placement(image, cpu)).decode_batch(array, encoded, cpu)
    assert list(failures) == [1]
    assert torch.equal(out[2], _planes(jpegs[1]))
    assert len(decoder._decoder.calls) == 1
