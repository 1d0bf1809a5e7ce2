"""What every field has in common."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class EncodedImage(NamedTuple):
    """Said of a slot that holds a JPEG, to be decoded on the card, instead of its pixels."""

    length: int
    """Bytes, from the start of the slot."""
    height: int
    width: int


NOT_ENCODED = EncodedImage(0, 0, 0)
"""Of a slot that holds them."""


class Field(Protocol):
    """Frozen, picklable, and used in workers: must not know torch."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The parts it can be read from, in order of preference; a sample has one of them."""
        ...

    @property
    def fixed_shape(self) -> bool:
        """Whether all samples have one shape and go into a slab; others are delivered as lists."""
        ...

    def decode_value(self, suffix: str, data: memoryview) -> Any:
        """The value, on its own."""
        ...

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[np.generic]) -> EncodedImage | None:
        """The value, into its slot; one that does not fit is a SampleError saying what was expected and found."""
        ...


def as_suffixes(given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """One suffix or several."""
    return (given,) if isinstance(given, str) else tuple(given)
