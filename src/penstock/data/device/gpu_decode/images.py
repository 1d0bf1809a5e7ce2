"""A batch of pictures on the card, from slots of which some hold pixels and the others JPEGs.

Whatever the card refuses, or has no memory for, is decoded by the cores after all, by the same guarded path.
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
from penstock.data.device.gpu_decode.decode_chunks import PORTION_PIXELS, DecodedChunks, split_chunks
from penstock.data.device.gpu_decode.decoders import GpuDecoder
from penstock.data.device.gpu_decode.placement import PlaceImages
from penstock.data.fields.image import Image
from penstock.errors import DecodeError, PenstockError

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("penstock")

FEW = 4
"""Copies in which pixels go to the card at most: where JPEGs lie between them in more places, those go too."""
_JPEG = ".jpg"


class BatchDecoder:
    """One field's. Several threads may have a batch each: one is then decoded while another is placed."""

    def __init__(self, image: Image, decoder: GpuDecoder, place: PlaceImages) -> None:
        self._image = image
        self._decoder = decoder
        self._place = place
        self._kept = DecodedChunks()
        self._placing = threading.Lock()
        """What placing takes of the card's memory, it takes once."""
        self._told = False
        """That the card did not manage."""

    def decode_batch(
        self, array: NDArray[np.uint8], encoded: EncodedSizes, device: torch.device
    ) -> tuple[Tensor, dict[int, PenstockError]]:
        """The batch, and which slots hold nothing because their picture cannot be decoded by anybody.

        `encoded` has each slot's `Encoded`.
        """
        host = torch.from_numpy(array)
        out = torch.empty(array.shape, dtype=torch.uint8, device=device)
        lengths = encoded[:, 0]
        for begin, end in _spans(np.flatnonzero(lengths == 0).tolist()):
            out[begin:end].copy_(host[begin:end], non_blocking=True)
        failures: dict[int, PenstockError] = {}
        slots = np.flatnonzero(lengths)
        for piece in split_chunks(encoded[slots, 1:].prod(axis=1, dtype=np.int64).tolist(), PORTION_PIXELS):
            for slot in self._refused(array, slots[piece].tolist(), encoded, out):
                try:
                    self._by_cores(array[slot], int(lengths[slot]))
                except PenstockError as error:
                    failures[slot] = error
                else:
                    out[slot].copy_(host[slot], non_blocking=True)
        return out, failures

    def _refused(self, array: NDArray[np.uint8], slots: list[int], encoded: EncodedSizes, out: Tensor) -> list[int]:
        """Decode these, and say which slots are still to be filled."""
        decoded: list[Tensor | None] = []
        lengths, *sides = encoded[slots].T.tolist()
        shapes = [(3, height, width) for height, width in zip(*sides, strict=True)]
        self._kept.begin()
        try:
            decoded = self._decode([_bytes(array[slot], length) for slot, length in zip(slots, lengths, strict=True)])
            good = [
                (slot, picture)
                for slot, shape, picture in zip(slots, shapes, decoded, strict=True)
                if picture is not None and picture.shape == shape
            ]
            with self._placing:
                self._place(good, out)
        except RuntimeError as error:
            self._tell("out of memory on the card" if _out_of_memory(error) else str(error))
            return slots
        finally:
            self._kept.end(decoded, torch.cuda.current_stream(out.device).record_event() if out.is_cuda else None)
        done = {slot for slot, _ in good}
        return [slot for slot in slots if slot not in done]

    def _decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> list[Tensor | None]:
        """All at once; if one of them is refused, one by one, to find which."""
        try:
            return [*self._decoder.decode(jpegs)]
        except RuntimeError as error:
            if _out_of_memory(error):
                raise
        if len(jpegs) == 1:
            return [None]
        return [picture for jpeg in jpegs for picture in self._decode([jpeg])]

    def _by_cores(self, slot: NDArray[np.uint8], length: int) -> None:
        """From a copy: the pixels go where the JPEG is."""
        try:
            self._image.decode_into(_JPEG, memoryview(_bytes(slot, length).tobytes()), slot)
        except PenstockError:
            raise
        except Exception as error:
            raise DecodeError(f"{type(error).__name__}: {error}", stage="decode") from error

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            log.warning("%s while decoding: the cores decode what does not work there", reason)


def _bytes(slot: NDArray[np.uint8], length: int) -> NDArray[np.uint8]:
    return slot.reshape(-1)[:length]


def _spans(slots: Sequence[int]) -> list[tuple[int, int]]:
    """From where to where these lie: neighbours together, and all of them if that would be many pieces."""
    breaks = [at for at in range(1, len(slots)) if slots[at] != slots[at - 1] + 1]
    if len(breaks) >= FEW:
        breaks = []
    pieces = zip([0, *breaks], [*breaks, len(slots)], strict=True)
    return [(slots[begin], slots[end - 1] + 1) for begin, end in pieces if end > begin]


def _out_of_memory(error: RuntimeError) -> bool:
    """torch's own error, or a decoder's that quotes it."""
    kind: Any = torch.OutOfMemoryError
    return isinstance(error, kind) or "out of memory" in str(error)
