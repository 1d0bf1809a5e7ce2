"""Choose a part's codec by its suffix, and verify that a part decodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

from penstock.errors import DecodeError
from penstock.shards.codecs.arrays import decode_npy, decode_npy_zst, decode_npz
from penstock.shards.codecs.images import verify_image
from penstock.shards.guards.buffer import Buffer

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


@lru_cache(maxsize=1024)
def codec_of(suffix: str) -> str:
    """Return the codec of parts such as `.jpg`, `_features.npz` or `.edge.npy.zst`; "opaque" if the suffix is unknown.

    Results are cached: this is called for every part of every sample, and a dataset has few kinds of parts.
    """
    lowered = suffix.lower()
    return next((codec for ending, codec in _CODEC_OF_ENDING.items() if lowered.endswith(ending)), "opaque")


def verify_part(suffix: str, data: Buffer) -> None:
    """Decode a part completely and discard the result; raise GuardError or DecodeError if that fails."""
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


def _failure(what: str, error: Exception) -> DecodeError:
    return DecodeError(
        f"cannot be decoded as {what}: {error}",
        stage="decode",
        advice="Copy or download it again, or leave the sample out",
    )


_CHECKS: dict[str, Callable[[Buffer], object]] = {
    "jpeg": verify_image,
    "npz": decode_npz,
    "npy": decode_npy,
    "npy.zst": decode_npy_zst,
    "json": _check_json,
    "text": _check_text,
    "image": verify_image,
}
