"""Who decodes JPEGs on the card: a small interface, and what is installed."""

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
    """Called from several threads, on the stream where the pictures are used."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> Sequence[Tensor | None]:
        """uint8 (3, height, width) of each; None for one that is refused, or a RuntimeError if it cannot say which.

        Whoever asks keeps them until the stream is done with them: their memory is not that stream's.
        """
        ...


class _TensorDecoder:
    """nvJPEG, as a package has it that gives tensors.

    It decodes on a stream of its own, which does not wait for ours, into memory of the stream that is current. So
    pictures get a stream that has no other memory: what it has free is free indeed, and nobody still reads it.
    """

    def __init__(self, package: str, decode: Callable[..., list[Tensor]], mode: object, device: torch.device) -> None:
        self.name = f"{package} {version(package)} (nvJPEG)"
        self._decode = decode
        self._mode = mode
        self._device = device
        self._memory = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()

    def decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> Sequence[Tensor | None]:
        """In one call."""
        using = torch.cuda.current_stream(self._device)
        given = [torch.from_numpy(jpeg) for jpeg in jpegs]
        with self._lock, torch.cuda.stream(self._memory):
            pictures = self._decode(given, mode=self._mode, device=self._device)
        using.wait_stream(self._memory)
        return pictures


class TorchvisionDecoder(_TensorDecoder):
    """Of any version that decodes on CUDA devices."""

    def __init__(self, device: torch.device) -> None:
        io = importlib.import_module("torchvision.io")
        super().__init__("torchvision", io.decode_jpeg, io.ImageReadMode.RGB, device)


class TorchcodecDecoder(_TensorDecoder):
    """0.17 or later: the same decoder, which has moved there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__("torchcodec", importlib.import_module("torchcodec.decoders").decode_jpeg, "RGB", device)


class NvImageCodecDecoder:
    """nvJPEG, as nvImageCodec has it, 0.9 or later.

    It has memory of its own and says itself which pictures it refuses. Its CPU decoders are left out: whatever they
    would take is decoded by our own guarded path.
    """

    def __init__(self, device: torch.device) -> None:
        codec: Any = importlib.import_module(_NVIMGCODEC)
        kinds = codec.BackendKind
        self.name = f"nvImageCodec {codec.__version__} (nvJPEG)"
        self._device = device
        self._source = codec.CodeStream
        self._decoder = codec.Decoder(
            device_id=device.index,
            backends=[codec.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)],
        )
        self._params = codec.DecodeParams(
            apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB, sample_format=codec.SampleFormat.P_RGB
        )
        self._lock = threading.Lock()

    def decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> Sequence[Tensor | None]:
        """In one call, on the current stream."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        sources = [self._source(jpeg) for jpeg in jpegs]
        with self._lock:
            found = self._decoder.decode(sources, params=self._params, cuda_stream=stream)
        return [None if picture is None else from_dlpack(picture) for picture in found]


_KNOWN: dict[str, Callable[[torch.device], GpuDecoder]] = {
    "torchvision": TorchvisionDecoder,
    "torchcodec": TorchcodecDecoder,
    _NVIMGCODEC: NvImageCodecDecoder,
}
"""By what has to be installed, the first of which counts."""


def choose_decoder(device: str) -> GpuDecoder:
    """For that device, by what is installed; a SettingError says why there is none."""
    where = torch.device(device)
    advice = "Use decode='cpu', or decode='auto', which decodes there if it can"
    if where.type != "cuda":
        raise SettingError(f"device={device!r} decodes no JPEGs", advice=advice)
    card = torch.device("cuda", where.index if ":" in device else torch.cuda.current_device())
    for package, make in _KNOWN.items():
        if _is_installed(package):
            try:
                decoder = make(card)
            except (ImportError, AttributeError, OSError, RuntimeError) as error:  # too old, or lacks a library
                log.info("%s cannot decode on %s: %s", package, card, error)
                continue
            log.info("JPEGs are decoded on %s by %s", card, decoder.name)
            return decoder
    reason = "decoding on the GPU needs torchvision, torchcodec or nvImageCodec, and none of them works here"
    raise SettingError(reason, advice=advice)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it would lie in is not there
        return False
