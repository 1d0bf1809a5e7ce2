"""A batch of pictures on the card, from slots of which some hold pixels and the others JPEGs.

Whatever the card refuses, or has no memory for, is decoded by the cores after all, by the same guarded path.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.errors import DecodeError, PenstockError
from penstock.flow.fields.base import Encoded
from penstock.flow.fields.image import Image
from penstock.flow.oncard.decoders import CardDecoder

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("penstock")

PORTION_PIXELS = 1 << 26
"""Decoded at a time: 200 MB of the card's memory, and four times that while they are resized."""
_JPEG = ".jpg"


class Pictures:
    """One field's."""

    def __init__(self, image: Image, decoder: CardDecoder) -> None:
        self._image = image
        self._decoder = decoder
        self._told = False
        """That the card did not manage."""

    def arrive(
        self, array: NDArray[np.uint8], encoded: Mapping[int, Encoded], device: torch.device
    ) -> tuple[Tensor, dict[int, PenstockError]]:
        """The batch, and which slots hold nothing because their picture cannot be decoded by anybody."""
        host = torch.from_numpy(array)
        out = torch.empty(array.shape, dtype=torch.uint8, device=device)
        for begin, end in _runs([slot for slot in range(len(array)) if slot not in encoded]):
            out[begin:end].copy_(host[begin:end], non_blocking=True)
        failures: dict[int, PenstockError] = {}
        for slots in _portions(encoded):
            for slot in self._refused(array, {slot: encoded[slot] for slot in slots}, out):
                try:
                    self._by_cores(array[slot], encoded[slot].length)
                except PenstockError as error:
                    failures[slot] = error
                else:
                    out[slot].copy_(host[slot], non_blocking=True)
        return out, failures

    def _refused(self, array: NDArray[np.uint8], encoded: Mapping[int, Encoded], out: Tensor) -> list[int]:
        """Decode these, and say which slots are still to be filled."""
        try:
            decoded = self._decode([_bytes(array[slot], each.length) for slot, each in encoded.items()])
            by_shape: dict[tuple[int, int], list[tuple[int, Tensor]]] = {}
            for (slot, each), picture in zip(encoded.items(), decoded, strict=True):
                if picture is not None and tuple(picture.shape) == (3, each.height, each.width):
                    by_shape.setdefault((each.height, each.width), []).append((slot, picture))
            for shape, some in by_shape.items():
                self._place(shape, some, out)
        except RuntimeError as error:
            self._tell("out of memory on the card" if _out_of_memory(error) else str(error))
            return list(encoded)
        done = {slot for some in by_shape.values() for slot, _ in some}
        return [slot for slot in encoded if slot not in done]

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

    def _place(self, shape: tuple[int, int], some: Sequence[tuple[int, Tensor]], out: Tensor) -> None:
        """Pictures of one shape, resized with antialiasing, each into its slot."""
        at = self._image.placed(*shape)
        pictures = torch.stack([picture for _, picture in some])
        if shape != (at.height, at.width):
            numbers = pictures.half() if pictures.is_cuda else pictures.float()
            numbers = torch.nn.functional.interpolate(
                numbers, (at.height, at.width), mode="bilinear", antialias=True, align_corners=False
            )
            pictures = numbers.round_().to(torch.uint8)
        rows, columns = at.covered
        pictures = pictures[:, :, at.top : at.top + rows, at.left : at.left + columns]
        for (slot, _), picture in zip(some, pictures, strict=True):
            target = out[slot].permute(2, 0, 1) if self._image.layout == "HWC" else out[slot]
            target[:, rows:] = 0
            target[:, :rows, columns:] = 0
            target[:, :rows, :columns].copy_(picture)

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


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbours together."""
    breaks = [at for at in range(1, len(slots)) if slots[at] != slots[at - 1] + 1]
    for begin, end in zip([0, *breaks], [*breaks, len(slots)], strict=True):
        if end > begin:
            yield slots[begin], slots[end - 1] + 1


def _portions(encoded: Mapping[int, Encoded]) -> Iterator[list[int]]:
    """As many at a time as the stated memory holds; one at least."""
    some: list[int] = []
    pixels = 0
    for slot, each in sorted(encoded.items()):
        if some and pixels + each.height * each.width > PORTION_PIXELS:
            yield some
            some, pixels = [], 0
        some.append(slot)
        pixels += each.height * each.width
    if some:
        yield some


def _out_of_memory(error: RuntimeError) -> bool:
    """torch's own error, or a decoder's that quotes it."""
    kind: Any = torch.OutOfMemoryError
    return isinstance(error, kind) or "out of memory" in str(error)
