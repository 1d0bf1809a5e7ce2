"""Which codec a part's suffix stands for, and whether a part decodes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

from PIL import Image

from penstock.errors import DecodeError, GuardError
from penstock.shards.codecs.arrays import decode_npy, decode_npy_zst, decode_npz
from penstock.shards.codecs.jpeg import decode_jpeg
from penstock.shards.guards.buffer import Buffer
from penstock.shards.guards.jpeg import MAX_PIXELS

_CODECS = {
    "jpeg": ("jpg", "jpeg", "jpe", "jfif"),
    "npz": ("npz",),
    "npy": ("npy",),
    "npy.zst": ("npy.zst",),
    "json": ("json",),
    "text": ("txt", "text", "csv", "tsv", "jsonl", "cls", "cls2", "class", "count", "index", "id"),
    "image": ("png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm"),
}
_CODEC_OF_ENDING = {f".{name}": codec for codec, names in _CODECS.items() for name in names}
_PILLOW_FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def codec_of(suffix: str) -> str:
    """The codec of parts such as `.jpg`, `_features.npz` or `.edge.npy.zst`; "opaque" if we know none."""
    lowered = suffix.lower()
    return next((codec for ending, codec in _CODEC_OF_ENDING.items() if lowered.endswith(ending)), "opaque")


def verify_part(suffix: str, data: Buffer) -> None:
    """Decode a part to the last byte and forget it; GuardError or DecodeError if that does not go well."""
    check = _CHECKS.get(codec_of(suffix))
    if check is not None:
        check(data)


def _check_json(data: Buffer) -> None:
    try:
        json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise _failure("JSON", error) from error


def _check_text(data: Buffer) -> None:
    try:
        bytes(data).decode()
    except UnicodeDecodeError as error:
        raise _failure("UTF-8 text", error) from error


def _check_image(data: Buffer) -> None:
    """The first picture of the file, as a loader would take it."""
    try:
        with Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise _too_large(f"{picture.width}×{picture.height}")
            picture.load()
    except (GuardError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(str(error)) from error
    except Exception as error:  # Pillow raises whatever its parsers stumble over
        raise _failure("a picture", error) from error


def _too_large(size: str) -> GuardError:
    return GuardError(
        f"the picture is too large to decode: {size}",
        stage="guard",
        advice="Shrink or tile the picture before it goes into a shard",
    )


def _failure(what: str, error: Exception) -> DecodeError:
    return DecodeError(
        f"does not read as {what}: {error}",
        stage="decode",
        advice="Copy or download it again, or leave the sample out",
    )


_CHECKS: dict[str, Callable[[Buffer], object]] = {
    "jpeg": decode_jpeg,
    "npz": decode_npz,
    "npy": decode_npy,
    "npy.zst": decode_npy_zst,
    "json": _check_json,
    "text": _check_text,
    "image": _check_image,
}
