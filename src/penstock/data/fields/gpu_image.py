"""The image field that leaves a fraction of the JPEGs to the GPU.

Workers copy such a JPEG into the slot, and the batch decoder (`data.device.gpu_decode`) decodes it where the batch
arrives.
"""

from __future__ import annotations

import mmap
import os
import weakref
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import EncodedImage, Field, SampleContext
from penstock.data.fields.geometry import ImageGeometry
from penstock.data.fields.image import Image
from penstock.shards.codecs.images import is_jpeg
from penstock.shards.guards.buffer import Buffer, flat_view
from penstock.shards.guards.jpeg import JpegInfo, inspect_jpeg, jpeg_segments

_ADOBE, _FRAMES = 0xEE, (0xC0, 0xC1)
"""JPEG markers: the segment in which Adobe's software states the colour space, and the frames of sequential JPEGs."""
_HASHED_BYTES = 64
"""Bytes at the end of a JPEG whose hash decides where it is decoded: compressed pixels, different in each image."""
_MEMORY_NAME = "penstock-fraction"
"""Name of the anonymous memory, which shows whether a descriptor has been reused for another file."""
_CELL_BYTES = 8
"""Bytes of one float64."""

Cell = NDArray[np.float64]


class GpuDecodedImage(Field):
    """An image field as workers use it when the GPU decodes: they check the JPEG and copy it, and decode the rest.

    A JPEG that is longer than its pixels is decoded on the CPU too: its output is so much smaller than the image that
    the decoder's shrinking makes the CPU fast.
    """

    def __init__(self, image: Image, fraction: float = 1.0) -> None:
        self.image = image
        self.gpu_fraction = SharedFraction(fraction)
        """Fraction of the images that the GPU decodes; the main process changes it while workers run."""
        self.example: bytes | None = None
        """A JPEG that this process has decoded, to measure decoding rates with."""

    has_geometry = True

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the image field."""
        return self.image.suffixes

    @property
    def optional(self) -> bool:  # type: ignore[override]
        """Whether a sample may have no image."""
        return self.image.optional

    @property
    def random_numbers(self) -> int:  # type: ignore[override]
        """Random numbers for each sample."""
        return self.image.random_numbers

    @property
    def fixed_shape(self) -> bool:
        """Always true: the GPU reads the JPEG from a slot."""
        return self.image.fixed_shape

    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> NDArray[Any]:
        """Decode the image on the CPU into an array of its own, and remember a JPEG as the example."""
        if is_jpeg(data):
            self.example = bytes(data)
        return self.image.decode_value(suffix, data, sample)

    def decode_into(
        self, suffix: str, data: memoryview, slot: NDArray[Any], sample: SampleContext
    ) -> EncodedImage | None:
        """Copy the JPEG into the slot and return the note about it; or decode the image into the slot."""
        if not is_jpeg(data) or data.nbytes > slot.nbytes or not self._is_for_gpu(data):
            self.image.decode_into(suffix, data, slot, sample)
            return None
        info = inspect_jpeg(data)
        if not can_decode_on_gpu(data, info):
            self.image.decode_into(suffix, data, slot, sample)
            return None
        geometry = sample.geometry = self.image.geometry(info.height, info.width, sample.draws)
        slot.reshape(-1)[: data.nbytes] = np.frombuffer(data, np.uint8)
        return encoded_image(data, info, geometry)

    def missing_value(self, sample: SampleContext) -> NDArray[Any] | None:
        """Return an image of the fill colour."""
        return self.image.missing_value(sample)

    def _is_for_gpu(self, data: memoryview) -> bool:
        """Decide by a hash of the JPEG, so that every worker decides alike."""
        fraction = self.gpu_fraction.value
        return fraction >= 1 or zlib.crc32(data[-_HASHED_BYTES:]) < fraction * 2**32


def encoded_image(data: Buffer, info: JpegInfo, geometry: ImageGeometry) -> EncodedImage:
    """Return the note about a JPEG in a slot."""
    return EncodedImage(len(flat_view(data)), info.height, info.width, *geometry.window, int(geometry.mirrored))


def can_decode_on_gpu(data: memoryview, info: JpegInfo) -> bool:
    """Return whether all decoders read the JPEG alike: a sequential one, greyscale or luma and chroma.

    Progressive JPEGs make the GPU wait for the host; CMYK, and RGB stored without conversion, are misread. What the
    GPU's decoder does with stray bytes in the header is not known.
    """
    if info.progressive or info.stray_bytes or info.components not in (1, 3):
        return False
    view = flat_view(data)
    for marker, start, end in jpeg_segments(view):
        if (
            marker == _ADOBE
            and bytes(view[start : start + 5]) == b"Adobe"
            and end - start >= 12
            and not view[start + 11]
        ):
            return info.components == 1
        if marker in _FRAMES and info.components == 3:
            identifiers = bytes((view[start + 6], view[start + 9], view[start + 12]))
            if identifiers in (b"RGB", b"rgb"):
                return False
    return True


class SharedFraction:
    """A number that one process changes while its workers read it.

    It is picklable: a copy in another process shows the value that is set here. When it is pickled for the first time,
    it moves into a page of anonymous memory (memfd), which workers open through the file descriptors of the owner in
    /proc. Where that is not supported, a worker keeps the value that was sent to it.
    """

    def __init__(self, value: float) -> None:
        self._cell: Cell = np.array([value])
        self._path: str | None = None

    @property
    def value(self) -> float:
        """The value that was set last."""
        return float(self._cell[0])

    @value.setter
    def value(self, value: float) -> None:
        self._cell[0] = value

    def __getstate__(self) -> tuple[str | None, float]:
        if self._path is None and hasattr(os, "memfd_create"):
            self._share()
        return self._path, self.value

    def __setstate__(self, state: tuple[str | None, float]) -> None:
        self._path, value = state
        self._cell = np.array([value])
        if self._path is not None:
            try:
                self._cell = _open_shared(self._path)
            except (OSError, ValueError):  # the owner has ended, or /proc is not the usual one
                self._path = None

    def _share(self) -> None:
        descriptor = os.memfd_create(_MEMORY_NAME, os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, _CELL_BYTES)
        cell = np.frombuffer(mmap.mmap(descriptor, _CELL_BYTES), np.float64)
        cell[0] = self.value
        self._cell, self._path = cell, f"/proc/{os.getpid()}/fd/{descriptor}"


def _open_shared(path: str) -> Cell:
    """Map the owner's memory; raise a ValueError if the descriptor has been reused for another file."""
    if _MEMORY_NAME not in os.readlink(path):
        raise ValueError(f"{path} is not a shared fraction")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(descriptor, _CELL_BYTES, prot=mmap.PROT_READ), np.float64)
    finally:
        os.close(descriptor)
