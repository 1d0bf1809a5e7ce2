"""Makes a batch of images on the GPU from slots of which some hold pixels and the others JPEGs.

Images that the GPU decoder refuses, or has no memory for, are decoded on the CPU, by the same guarded code.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.slab_layout import EncodedSizes
from penstock.data.device.gpu_decode.decode_chunks import CHUNK_PIXELS, DecodedChunks, split_chunks
from penstock.data.device.gpu_decode.decoders import GpuDecoder
from penstock.data.device.gpu_decode.placement import PlaceImages, SlottedImage
from penstock.data.fields.base import EncodedImage
from penstock.data.fields.image import Image
from penstock.errors import DecodeError, PenstockError

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("penstock")

MAX_COPIES = 4
"""Copies of runs of pixel slots to the GPU; with more runs the whole range is copied once, JPEGs between included."""


class BatchDecoder:
    """The GPU's part of one image field.

    Several threads may have a batch each: one is then decoded while another is placed.
    """

    def __init__(self, image: Image, decoder: GpuDecoder, place: PlaceImages) -> None:
        self._image = image
        self._decoder = decoder
        self._place = place
        self._chunks = DecodedChunks()
        self._placing = threading.Lock()
        """Held while images are placed, so that the GPU memory which that needs is needed once."""
        self._warned = False
        """Whether a failure of the GPU decoder has been logged."""

    def decode_batch(
        self, array: NDArray[np.uint8], encoded: EncodedSizes, device: torch.device
    ) -> tuple[Tensor, dict[int, PenstockError]]:
        """Return the batch on the device, and the error of each slot whose image can be decoded nowhere.

        `encoded` has an `EncodedImage` for each slot.
        """
        host = torch.from_numpy(array)
        out = torch.empty(array.shape, dtype=torch.uint8, device=device)
        lengths = encoded[:, 0]
        for begin, end in _copy_ranges(np.flatnonzero(lengths == 0).tolist()):
            out[begin:end].copy_(host[begin:end], non_blocking=True)
        failures: dict[int, PenstockError] = {}
        slots = np.flatnonzero(lengths)
        for chunk in split_chunks(encoded[slots, 1:3].prod(axis=1, dtype=np.int64).tolist(), CHUNK_PIXELS):
            for slot in self._decode_chunk(array, slots[chunk].tolist(), encoded, out):
                try:
                    self._decode_on_cpu(array[slot], EncodedImage(*encoded[slot].tolist()))
                except PenstockError as error:
                    failures[slot] = error
                else:
                    out[slot].copy_(host[slot], non_blocking=True)
        return out, failures

    def _decode_chunk(
        self, array: NDArray[np.uint8], slots: list[int], encoded: EncodedSizes, out: Tensor
    ) -> list[int]:
        """Decode the JPEGs of these slots on the GPU, and return the slots that are still to be filled."""
        decoded: list[Tensor | None] = []
        notes = [EncodedImage(*note) for note in encoded[slots].tolist()]
        self._chunks.reserve()
        try:
            decoded = self._decode([_jpeg(array[slot], note.length) for slot, note in zip(slots, notes, strict=True)])
            good = [
                SlottedImage(slot, self._image.geometry_of(note), image)
                for slot, note, image in zip(slots, notes, decoded, strict=True)
                if image is not None and image.shape == (3, note.height, note.width)
            ]
            with self._placing:
                self._place(good, out)
        except RuntimeError as error:
            self._warn("the GPU was out of memory" if _is_out_of_memory(error) else f"the GPU failed ({error})")
            return slots
        finally:
            self._chunks.hold(decoded, torch.cuda.current_stream(out.device).record_event() if out.is_cuda else None)
        filled = {image.slot for image in good}
        return [slot for slot in slots if slot not in filled]

    def _decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> list[Tensor | None]:
        """Decode all JPEGs in one call; if one is refused, decode them one by one to find which."""
        try:
            return [*self._decoder.decode(jpegs)]
        except RuntimeError as error:
            if _is_out_of_memory(error):
                raise
        if len(jpegs) == 1:
            return [None]
        return [image for jpeg in jpegs for image in self._decode([jpeg])]

    def _decode_on_cpu(self, slot: NDArray[np.uint8], note: EncodedImage) -> None:
        """Decode from a copy of the JPEG, because the pixels overwrite the slot that holds it."""
        try:
            self._image.decode_noted(memoryview(_jpeg(slot, note.length).tobytes()), slot, note)
        except PenstockError:
            raise
        except Exception as error:
            raise DecodeError(f"{type(error).__name__}: {error}", stage="decode") from error

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s while decoding: the CPU decodes the images that the GPU cannot", reason)


def _jpeg(slot: NDArray[np.uint8], length: int) -> NDArray[np.uint8]:
    return slot.reshape(-1)[:length]


def _copy_ranges(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Return (begin, end) of each run of neighbouring slots; a single range if there are too many runs."""
    breaks = [index for index in range(1, len(slots)) if slots[index] != slots[index - 1] + 1]
    if len(breaks) >= MAX_COPIES:
        breaks = []
    runs = zip([0, *breaks], [*breaks, len(slots)], strict=True)
    return [(slots[begin], slots[end - 1] + 1) for begin, end in runs if end > begin]


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether the error is torch's own out-of-memory error or a decoder's that quotes it."""
    kind: Any = torch.OutOfMemoryError
    return isinstance(error, kind) or "out of memory" in str(error)
