"""The fields without a shape (JSON, text, raw bytes), and labels, which are numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import as_suffixes
from penstock.errors import DecodeError, SampleError


@dataclass(frozen=True)
class _Plain:
    """A field that is delivered as a list, one entry per sample."""

    suffix: str | tuple[str, ...]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The declared suffixes as a tuple."""
        return as_suffixes(self.suffix)

    @property
    def fixed_shape(self) -> bool:
        """Always false: the values have no shape."""
        return False

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> None:
        """Raise a SampleError: the field has no slot."""
        raise SampleError("a field without a shape has no slot", stage="decode")


class Json(_Plain):
    """A field of parsed JSON."""

    def decode_value(self, suffix: str, data: memoryview) -> Any:
        """Parse the JSON; a DecodeError says why that fails."""
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"is not valid JSON: {error}", stage="decode") from error


class Text(_Plain):
    """A field of UTF-8 text, as strings."""

    def decode_value(self, suffix: str, data: memoryview) -> str:
        """Return the text unchanged, without stripping white space."""
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"is not valid UTF-8: {error}", stage="decode") from error


class Raw(_Plain):
    """A field of unchanged bytes."""

    def decode_value(self, suffix: str, data: memoryview) -> bytes:
        """Return a copy of the bytes: the arena is reused."""
        return bytes(data)


@dataclass(frozen=True)
class Label:
    """A field of whole numbers, written as text, such as `.cls`; or, with `key`, one number of a JSON part."""

    suffix: str | tuple[str, ...]
    key: str | None = None

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The declared suffixes as a tuple."""
        return as_suffixes(self.suffix)

    @property
    def fixed_shape(self) -> bool:
        """Always true: each sample has one number."""
        return True

    def decode_value(self, suffix: str, data: memoryview) -> NDArray[np.int64]:
        """Return the number as a 0-d array."""
        try:
            value = int(bytes(data)) if self.key is None else json.loads(bytes(data))[self.key]
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{value!r} is not a whole number")
            return np.array(value, np.int64)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DecodeError(f"holds no label: {error}", stage="decode") from error

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> None:
        """Write the number into its slot."""
        slot[...] = self.decode_value(suffix, data)
