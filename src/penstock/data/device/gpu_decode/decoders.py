"""The decoders of JPEGs on the GPU: a small interface, its implementations, and the choice by what is installed."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from penstock.errors import SettingError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

log = logging.getLogger("penstock")

_NVIMGCODEC = "nvidia.nvimgcodec"


class GpuDecoder(Protocol):
    """A decoder that is called from several threads, on the stream where the images are used."""

    @property
    def name(self) -> str:
        """Name and version, for messages."""
        ...

    def decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> Sequence[Tensor | None]:
        """Return a uint8 (3, height, width) tensor for each JPEG, and None for each that is refused.

        Raise a RuntimeError if a JPEG is refused and the decoder does not report which. The caller keeps the tensors
        until the stream has used them, because their memory does not belong to that stream.
        """
        ...


class _TensorDecoder:
    """nvJPEG as wrapped by a package that returns tensors.

    The package decodes on a stream of its own, which does not wait for ours, into memory of the current stream. So
    decoding gets a current stream that owns no other memory: a free block of it is really free, and no kernel still
    reads it.
    """

    def __init__(self, package: str, decode: Callable[..., list[Tensor]], mode: object, device: torch.device) -> None:
        self.name = f"{package} {version(package)} (nvJPEG)"
        self._decode = decode
        self._mode = mode
        self._device = device
        self._memory_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()

    def decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> Sequence[Tensor | None]:
        """Decode all JPEGs in one call; the current stream waits for the result."""
        current = torch.cuda.current_stream(self._device)
        tensors = [torch.from_numpy(jpeg) for jpeg in jpegs]
        with self._lock, torch.cuda.stream(self._memory_stream):
            images = self._decode(tensors, mode=self._mode, device=self._device)
        current.wait_stream(self._memory_stream)
        return images


class TorchvisionDecoder(_TensorDecoder):
    """torchvision, any version that decodes on CUDA devices."""

    def __init__(self, device: torch.device) -> None:
        io = importlib.import_module("torchvision.io")
        super().__init__("torchvision", io.decode_jpeg, io.ImageReadMode.RGB, device)


class TorchcodecDecoder(_TensorDecoder):
    """torchcodec 0.17 or later, to which torchvision's decoder has moved."""

    def __init__(self, device: torch.device) -> None:
        super().__init__("torchcodec", importlib.import_module("torchcodec.decoders").decode_jpeg, "RGB", device)


class NvImageCodecDecoder:
    """nvJPEG as wrapped by nvImageCodec, 0.9 or later.

    It has memory of its own and reports which JPEGs it refuses. Its CPU decoders are not used: the images that they
    would decode are decoded by our own guarded code.
    """

    def __init__(self, device: torch.device) -> None:
        codec: Any = importlib.import_module(_NVIMGCODEC)
        kinds = codec.BackendKind
        self.name = f"nvImageCodec {codec.__version__} (nvJPEG)"
        self._device = device
        self._code_stream = codec.CodeStream
        self._decoder = codec.Decoder(
            device_id=device.index,
            backends=[codec.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)],
        )
        self._params = codec.DecodeParams(
            apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB, sample_format=codec.SampleFormat.P_RGB
        )
        self._lock = threading.Lock()

    def decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> Sequence[Tensor | None]:
        """Decode all JPEGs in one call, on the current stream."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        sources = [self._code_stream(jpeg) for jpeg in jpegs]
        with self._lock:
            images = self._decoder.decode(sources, params=self._params, cuda_stream=stream)
        return [None if image is None else from_dlpack(image) for image in images]


_DECODERS: dict[str, Callable[[torch.device], GpuDecoder]] = {
    "torchvision": TorchvisionDecoder,
    "torchcodec": TorchcodecDecoder,
    _NVIMGCODEC: NvImageCodecDecoder,
}
"""Decoders by the package that has to be installed, in order of preference."""


def choose_decoder(device: str) -> GpuDecoder:
    """Return the first decoder that is installed and works on the device; a SettingError says why there is none."""
    requested = torch.device(device)
    advice = "Use decode='cpu', or decode='auto', which decodes on the GPU if possible"
    if requested.type != "cuda":
        raise SettingError(f"device={device!r} decodes no JPEGs", advice=advice)
    gpu = torch.device("cuda", requested.index if ":" in device else torch.cuda.current_device())
    for package, make in _DECODERS.items():
        if _is_installed(package):
            try:
                decoder = make(gpu)
            except (ImportError, AttributeError, OSError, RuntimeError) as error:  # too old, or lacks a library
                log.info("%s cannot decode on %s: %s", package, gpu, error)
                continue
            log.info("JPEGs are decoded on %s by %s", gpu, decoder.name)
            return decoder
    reason = "decoding on the GPU needs torchvision, torchcodec or nvImageCodec, and none of them works here"
    raise SettingError(reason, advice=advice)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False
