"""The fields without a shape: JSON, text and raw bytes. Also how a value is found in JSON, for labels and boxes."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from penstock.data.fields.base import Field, SampleContext, check_fill
from penstock.errors import DecodeError, SampleError

MAX_SHOWN = 60
"""Characters of a wrong value that a message shows."""


@dataclass(frozen=True)
class _Plain(Field):
    """A field that is delivered as a list, one entry per sample.

    Args:
        suffix: The part to read, or several alternatives.
        optional: Whether a sample may lack the part. Its entry is then `fill`.
        fill: The entry of a sample that lacks the part.
    """

    suffix: str | tuple[str, ...]
    optional: bool = False
    fill: Any = None

    def __post_init__(self) -> None:
        check_fill(self.fill, self.optional)

    @property
    def fixed_shape(self) -> bool:
        """Always false: the values have no shape."""
        return False

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any], sample: SampleContext) -> None:
        """Raise a SampleError: the field has no slot."""
        raise SampleError("a field without a shape has no slot", stage="decode")

    def missing_value(self, sample: SampleContext) -> Any:
        """Return a copy of `fill`."""
        return deepcopy(self.fill)


class Json(_Plain):
    """A field of parsed JSON."""

    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> Any:
        """Parse the JSON; a DecodeError says why that fails."""
        return parse_json(data)


class Text(_Plain):
    """A field of UTF-8 text, as strings."""

    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> str:
        """Return the text unchanged, without stripping white space."""
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"is not valid UTF-8: {error}", stage="decode") from error


class Raw(_Plain):
    """A field of unchanged bytes."""

    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> bytes:
        """Return a copy of the bytes: the arena is reused."""
        return bytes(data)


def parse_json(data: memoryview) -> Any:
    """Return the parsed JSON; a DecodeError says why it is none."""
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"is not valid JSON: {error}", stage="decode") from error


def json_value(document: Any, path: str | None) -> Any:
    """Return the value at a path such as "meta.label"; without a path, the whole document.

    A name selects that key of an object; in a list, that key of each of its objects. A number selects an element of a
    list. A key of the document that contains dots itself goes before a path.
    """
    if path is None or (isinstance(document, dict) and path in document):
        return document if path is None else document[path]
    value = document
    for step in path.split("."):
        value = _step(value, step, path)
    return value


def _step(value: Any, step: str, path: str) -> Any:
    if isinstance(value, dict) and step in value:
        return value[step]
    if isinstance(value, list) and not step.isdecimal():
        return [_step(each, step, path) for each in value]
    if isinstance(value, list) and int(step) < len(value):
        return value[int(step)]
    raise DecodeError(f"the JSON has no {path!r}: {step!r} is not in {shown(value)}", stage="decode")


def shown(value: Any) -> str:
    """Return a value for a message, cut short; of an object, its keys."""
    text = f"an object with the keys {[*value]}" if isinstance(value, dict) else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
