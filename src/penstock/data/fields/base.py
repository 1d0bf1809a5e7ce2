"""The interface of all fields, and the note that a worker leaves for an image that the GPU is to decode."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class EncodedImage(NamedTuple):
    """A note that a slot holds a JPEG, to be decoded on the GPU, instead of its pixels."""

    length: int
    """Bytes of the JPEG, from the start of the slot."""
    height: int
    width: int


NOT_ENCODED = EncodedImage(0, 0, 0)
"""The note for a slot that holds pixels."""


class Field(Protocol):
    """The declaration of one entry of a batch; frozen, picklable, and used in workers, which do not import torch."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the parts that the field can be read from, in order of preference; a sample has one of them."""
        ...

    @property
    def fixed_shape(self) -> bool:
        """Whether all samples have one shape and go into a slab; other values are delivered as lists."""
        ...

    def decode_value(self, suffix: str, data: memoryview) -> Any:
        """Decode the part into a value of its own."""
        ...

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[np.generic]) -> EncodedImage | None:
        """Decode the part into its slot; a SampleError names the expected and the found shape if it does not fit."""
        ...


def as_suffixes(suffix: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return one suffix or several as a tuple."""
    return (suffix,) if isinstance(suffix, str) else tuple(suffix)
