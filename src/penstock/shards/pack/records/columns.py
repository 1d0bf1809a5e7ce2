"""The rule by which the columns of a record become the parts of a sample, the same for every format with columns.

A column's role follows from its type and name, unless the user states it. A part has a short suffix (`.jpg`, `.cls`,
`.txt`, `.npy`, `.bin`) if its column is the only one of its role, or is named "image", "label" or "text"; otherwise
the name goes before it (`.mask.png`). All columns of the role "json" together are one part, `.json`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SampleError, SettingError
from penstock.shards.codecs.arrays import encode_npy
from penstock.shards.guards.jpeg import MAX_PIXELS
from penstock.shards.pack.options import Role

Kind = Literal["image", "integer", "string", "array", "bytes", "other"]
StatedColumns = Sequence[tuple[str, Role | None]]
"""`PackOptions.columns`."""

MAX_VALUE_BYTES = 1 << 30
"""Longest value of a column. A file that states a longer one is damaged, or is no dataset of samples."""
LABEL_NAMES = ("label", "labels", "class", "cls", "target", "image/class/label")
TEXT_NAMES = ("text", "caption", "txt")
_MAIN_NAMES = {"image": "image", "label": "label", "text": "text"}
_ENDINGS = {"image": "", "label": ".cls", "text": ".txt", "array": ".npy", "bytes": ".bin"}
"""Ending of a suffix by role; the ending of an image follows from its bytes."""
_SIGNATURES = (
    (b"\xff\xd8\xff", 0, ".jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, ".png"),
    (b"WEBP", 8, ".webp"),
    (b"GIF8", 0, ".gif"),
    (b"II*\0", 0, ".tif"),
    (b"MM\0*", 0, ".tif"),
    (b"ftypavif", 4, ".avif"),
    (b"\0\0\0\x0cjP  ", 0, ".jp2"),
    (b"P5\n", 0, ".pgm"),
    (b"P6\n", 0, ".ppm"),
    (b"BM", 0, ".bmp"),
)
"""(bytes, their offset, ending) of image formats."""
_PIXELS = {("|u1", 2), ("|u1", 3), ("<u2", 2)}
"""Dtype and number of dimensions of arrays that a PNG stores without loss."""
PATH_SUFFIX = ".path"
"""Ends the name of the column with the file names of an image column."""


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column as a file describes it."""

    name: str
    kind: Kind
    classes: tuple[str, ...] = ()
    """Names of the classes if the column holds their numbers."""
    refusal: str | None = None
    """Why the column cannot be packed."""


@dataclass(frozen=True, slots=True)
class RecordColumn:
    """A column that is packed."""

    name: str
    role: Role
    suffix: str
    """Suffix of the part; that of an image is completed by an ending that follows from its bytes."""
    classes: tuple[str, ...] = ()

    @property
    def classes_file(self) -> str:
        """Name of the file with the names of the classes: `classes.txt`, or `classes.NAME.txt` for `.NAME.cls`."""
        return "classes" + self.suffix.removesuffix(".cls") + ".txt"


def assign_roles(found: Sequence[FoundColumn], stated: StatedColumns, path: str) -> tuple[RecordColumn, ...]:
    """Return the columns to pack: the stated ones, or all; a column that cannot be packed is a SettingError."""
    by_name = {column.name: column for column in found}
    if len(by_name) < len(found):
        raise SettingError("has two columns of the same name", shard=path, stage="pack")
    unknown = next((name for name, _ in stated if name not in by_name), None)
    if unknown is not None:
        raise SettingError(
            f"has no column {unknown!r}", shard=path, stage="pack", advice=f"There are: {', '.join(by_name)}"
        )
    roles = {name: role or _role(by_name[name]) for name, role in stated or [(column.name, None) for column in found]}
    refused = next((by_name[name] for name in roles if by_name[name].refusal), None)
    if refused is not None:
        others = " ".join(f"--column {column.name}" for column in found if column.refusal is None)
        raise SettingError(
            f"column {refused.name!r} {refused.refusal}",
            shard=path,
            stage="pack",
            advice=f"Name the columns to pack: {others}",
        )
    counts = [list(roles.values()).count(role) for role in roles.values()]
    return tuple(
        RecordColumn(
            name, role, _suffix(name, role, alone=count == 1), by_name[name].classes if role == "label" else ()
        )
        for (name, role), count in zip(roles.items(), counts, strict=True)
    )


def _role(column: FoundColumn) -> Role:
    if column.kind == "integer" or column.kind == "string":
        if column.classes or column.name in LABEL_NAMES:
            return "label"
        return "text" if column.kind == "string" and column.name in TEXT_NAMES else "json"
    return "json" if column.kind == "other" else column.kind


def _suffix(name: str, role: Role, alone: bool) -> str:
    if role == "json":
        return ".json"
    short = alone or _MAIN_NAMES.get(role) == name
    return ("" if short else "." + quote(name, safe="")) + _ENDINGS[role]


def image_ending(data: bytes) -> str | None:
    """Return the ending of the image format that the bytes begin like, such as ".jpg"; None if they are no image."""
    return next((ending for sign, at, ending in _SIGNATURES if data[at : at + len(sign)] == sign), None)


def record_parts(columns: Sequence[RecordColumn], values: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """Return the suffix and the bytes of each part of a record; a SampleError names the column.

    A value that is missing is an error, except in a column of the role "json".
    """
    parts: list[tuple[str, bytes]] = []
    others: dict[str, Any] = {}
    for column in columns:
        value = values.get(column.name)
        if column.role == "json":
            if column.name in values:
                others[column.name] = value
            continue
        if value is None:
            raise _bad_value(column, "has no value", f"Pack it as JSON: --column {column.name}=json")
        try:
            suffix, data = _part(column, value)
        except UnicodeError as error:
            raise _bad_value(column, "is not UTF-8 text", f"Pack it as bytes: --column {column.name}=bytes") from error
        except SampleError as error:
            raise _bad_value(column, error.reason, error.advice) from error
        if not data:
            raise _bad_value(column, "is empty", f"Pack it as JSON: --column {column.name}=json")
        parts.append((suffix, data))
    if others:
        parts.append((".json", _json_object(others)))
    return parts


def _json_object(values: Mapping[str, Any]) -> bytes:
    entries = []
    for name, value in values.items():
        try:
            entries.append(f"{json.dumps(name)}: {json.dumps(value, default=_plain_value)}")
        except (UnicodeError, TypeError, RecursionError) as error:
            raise SampleError(
                f"column {name!r} has no form in JSON: {error}",
                stage="read",
                advice=f"Pack it as bytes, --column {name}=bytes, or name the columns to pack without it",
            ) from error
    return ("{" + ", ".join(entries) + "}").encode()


def _bad_value(column: RecordColumn, reason: str, advice: str | None) -> SampleError:
    return SampleError(f"column {column.name!r} {reason}", stage="read", advice=advice)


def _part(column: RecordColumn, value: Any) -> tuple[str, bytes]:
    if column.role == "image":
        ending, data = (".png", encode_png(value)) if isinstance(value, np.ndarray) else _encoded_image(value)
        return column.suffix + ending, data
    if column.role == "array":
        return column.suffix, encode_npy(_array(value))
    if column.role == "bytes":
        return column.suffix, _checked(value, bytes)
    text = value.decode("utf-8") if isinstance(value, bytes) else value
    if column.role == "text":
        return column.suffix, str(_checked(text, str)).encode()
    if isinstance(text, np.generic):
        text = text.item()
    return column.suffix, str(int(text) if isinstance(text, bool) else _checked(text, int | float | str)).encode()


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise SampleError(f"holds a {type(value).__name__}, which its role does not allow")
    return value


def _encoded_image(value: Any) -> tuple[str, bytes]:
    data = bytes(_checked(value, bytes))
    ending = image_ending(data)
    if ending is None:
        raise SampleError(f"is no image: it begins with {data[:8].hex(' ') or 'nothing'}")
    return ending, data


def _array(value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise SampleError(f"is no array: {error}") from error
    if array.dtype.kind not in "biufc":
        raise SampleError(f"is an array of {array.dtype}, which has no numbers")
    return array


def encode_png(pixels: NDArray[Any]) -> bytes:
    """Return an array of pixels as a PNG: (height, width), with 1, 3 or 4 channels, of uint8, or of uint16 without."""
    from PIL import Image  # late: most sources hold encoded images

    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not is_image_shape(pixels.dtype, pixels.shape) or not pixels.size:
        raise SampleError(f"is no image: an array of {pixels.dtype} and shape {pixels.shape}")
    if pixels.shape[0] * pixels.shape[1] > MAX_PIXELS:
        raise SampleError(f"is an image of {pixels.shape[1]}×{pixels.shape[0]} pixels, more than {MAX_PIXELS}")
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return out.getvalue()


def is_image_shape(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether a PNG can hold arrays of this kind."""
    return (dtype.newbyteorder("<").str, len(shape)) in _PIXELS and (len(shape) == 2 or shape[2] in (1, 3, 4))


def _plain_value(value: Any) -> Any:
    """Return the form in JSON of a value that JSON does not have."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, date | time):  # and datetime
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__}")
