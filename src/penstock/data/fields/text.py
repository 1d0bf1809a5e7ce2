"""Fields without a shape: JSON, text, raw bytes; and labels, which are numbers."""

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
    """Delivered as a list, one entry per sample."""

    suffix: str | tuple[str, ...]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """As declared."""
        return as_suffixes(self.suffix)

    @property
    def fixed_shape(self) -> bool:
        """Never."""
        return False

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> None:
        """Has no slot."""
        raise SampleError("a field without a shape has no slot", stage="decode")


class Json(_Plain):
    """A JSON part, parsed."""

    def decode_value(self, suffix: str, data: memoryview) -> Any:
        """Whatever the JSON says."""
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"does not read as JSON: {error}", stage="decode") from error


class Text(_Plain):
    """A UTF-8 part, as a string."""

    def decode_value(self, suffix: str, data: memoryview) -> str:
        """The text as it stands, no stripping."""
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"does not read as UTF-8: {error}", stage="decode") from error


class Raw(_Plain):
    """A part's bytes, untouched."""

    def decode_value(self, suffix: str, data: memoryview) -> bytes:
        """A copy: the arena will be used again."""
        return bytes(data)


@dataclass(frozen=True)
class Label:
    """A whole number written as text, such as `.cls`; or, with `key`, one number of a JSON part."""

    suffix: str | tuple[str, ...]
    key: str | None = None

    @property
    def suffixes(self) -> tuple[str, ...]:
        """As declared."""
        return as_suffixes(self.suffix)

    @property
    def fixed_shape(self) -> bool:
        """A number per sample."""
        return True

    def decode_value(self, suffix: str, data: memoryview) -> NDArray[np.int64]:
        """A 0-d array."""
        try:
            value = int(bytes(data)) if self.key is None else json.loads(bytes(data))[self.key]
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{value!r} is not a whole number")
            return np.array(value, np.int64)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DecodeError(f"holds no label: {error}", stage="decode") from error

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> None:
        """One number."""
        slot[...] = self.decode_value(suffix, data)
