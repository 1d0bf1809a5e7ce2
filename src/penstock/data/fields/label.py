"""The label field: one number per sample, read from text or JSON, or found by a class name."""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import Field, SampleContext, check_fill
from penstock.data.fields.text import json_value, parse_json, shown
from penstock.errors import DecodeError, SettingError

MAX_CLASSES_BYTES = 16 << 20
"""Longest file of class names."""
MAX_NAMED_CLASSES = 8
"""Class names in a message."""
_LIMITS: Mapping[str, tuple[float, float]] = {
    **{dtype: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in ("int64", "int32")},
    **{dtype: (-float(np.finfo(dtype).max), float(np.finfo(dtype).max)) for dtype in ("float32", "float64")},
}
"""Least and greatest number of each dtype."""

Classes = str | os.PathLike[str] | Sequence[str] | None


@dataclass(frozen=True)
class Label(Field):
    """`Label(".cls")`: one number per sample; `Label(".json", key="meta.label")`: a number within a JSON part.

    White space around a number or a name, and a byte order mark before it, are ignored.

    Args:
        suffix: The part to read, or several alternatives.
        key: Where the label is in a JSON part: the key, or keys joined by dots. None: the part is the label, as text.
        dtype: int64, int32, float32 or float64. A number that it cannot hold is an error of the sample.
        classes: The names of all classes, or the path of a file with one name per line. Labels are then names, and are
            delivered as their positions, from 0. The file is read once, when the field is made.
        optional: Whether a sample may lack the part; a JSON part without the key is an error nevertheless.
        fill: The label of a sample that lacks the part. None: the labels are a list, in which it gets None.
    """

    suffix: str | tuple[str, ...]
    key: str | None = None
    dtype: Literal["int64", "int32", "float32", "float64"] = "int64"
    classes: Classes = None
    optional: bool = False
    fill: int | float | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _LIMITS:
            raise SettingError(f"dtype {self.dtype!r} is not known", advice=f"Use one of {', '.join(_LIMITS)}")
        object.__setattr__(self, "classes", read_classes(self.classes))
        if self.classes is not None and "float" in self.dtype:
            raise SettingError(f"classes are numbered, so dtype={self.dtype!r} has no meaning", advice="Leave it out")
        check_fill(self.fill, self.optional)
        if self.fill is not None and not _fits(self.fill, self.dtype):
            raise SettingError(f"fill={self.fill!r} is not {_expected(self.dtype)}")

    @property
    def fixed_shape(self) -> bool:
        """Whether each sample has a number; some have None where an optional label has no `fill`."""
        return not self.optional or self.fill is not None

    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> NDArray[Any] | float:
        """Return the number: as a 0-d array, or as a plain number for a list."""
        number = self._read(data)
        return np.array(number, self.dtype) if self.fixed_shape else number

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any], sample: SampleContext) -> None:
        """Write the number into its slot."""
        slot[...] = self._read(data)

    def missing_value(self, sample: SampleContext) -> NDArray[Any] | None:
        """Return `fill`."""
        return None if self.fill is None else np.array(self.fill, self.dtype)

    def _read(self, data: memoryview) -> float:
        if self.key is not None:
            return label_number(json_value(parse_json(data), self.key), self.dtype, self._numbers)
        text = _text(data)
        return label_number(text if self.classes is not None else self._parsed(text), self.dtype, self._numbers)

    def _parsed(self, text: str) -> float | str:
        """Return the number that a text is, or the text if it is none."""
        try:
            if "_" not in text:  # which Python allows in numbers
                return float(text) if "float" in self.dtype else int(text)
        except ValueError:
            pass
        return text

    @cached_property
    def _numbers(self) -> Mapping[str, int] | None:
        return class_numbers(self.classes)


def label_number(found: Any, dtype: str, numbers: Mapping[str, int] | None, what: str = "the label") -> float:
    """Return a label as a number; a DecodeError says what was found and what is expected.

    `numbers` are those of class names, if labels are names.
    """
    if numbers is not None:
        if isinstance(found, str) and (number := numbers.get(found.strip())) is not None:
            return number
        expected = f"one of {len(numbers)} class names"
        advice = f"The classes are {', '.join([*numbers][:MAX_NAMED_CLASSES])}"
        advice += ", …" if len(numbers) > MAX_NAMED_CLASSES else ""
    else:
        if _fits(found, dtype):
            return found  # type: ignore[no-any-return]
        expected = _expected(dtype)
        advice = 'Give classes=[…] for class names, and dtype="float32" for numbers that are not whole'
    raise DecodeError(f"{what} is {shown(found)} where {expected} is expected", stage="decode", advice=advice)


def _fits(found: Any, dtype: str) -> bool:
    kinds = int | float if "float" in dtype else int
    low, high = _LIMITS[dtype]
    return isinstance(found, kinds) and not isinstance(found, bool) and low <= found <= high


def _expected(dtype: str) -> str:
    return f"a finite number of {dtype}" if "float" in dtype else f"a whole number of {dtype}"


def _text(data: memoryview) -> str:
    """Return the text of a part; editors on Windows write it as UTF-16 or with a byte order mark."""
    raw = bytes(data)
    encoding = "utf-16" if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        return raw.decode(encoding).strip()
    except UnicodeDecodeError as error:
        raise DecodeError(
            f"the label is {shown(raw[:64])}, which is not text: {error.reason}", stage="decode"
        ) from error


def class_numbers(classes: Classes) -> Mapping[str, int] | None:
    """Return the number of each class name."""
    names = read_classes(classes)
    return None if names is None else {name: number for number, name in enumerate(names)}


def read_classes(classes: Classes) -> tuple[str, ...] | None:
    """Return the class names, read from a file if a path is given; refuse empty names and names that are repeated."""
    if classes is None:
        return None
    names = tuple(_read_lines(classes)) if isinstance(classes, str | os.PathLike) else tuple(classes)
    if not names:
        raise SettingError("classes has no names")
    seen: set[str] = set()
    for number, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            raise SettingError(f"class {number} is {name!r}, which is not a name", advice="Give each class a name")
        if name in seen:
            raise SettingError(f"class {number} has the name {name!r}, which another class has too")
        seen.add(name)
    return names


def _read_lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CLASSES_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the file of classes {os.fspath(path)!r} cannot be read: {error}") from error
    if len(data) > MAX_CLASSES_BYTES:
        raise SettingError(f"the file of classes {os.fspath(path)!r} has more than {MAX_CLASSES_BYTES} bytes")
    return [line.strip() for line in text.rstrip().split("\n")]
