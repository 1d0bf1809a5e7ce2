"""Converts the parts of one sample to the form in which they are stored: a function of the bytes and the options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DecodeError, GuardError, SampleError
from penstock.shards.codecs.arrays import decode_npy, decode_npy_zst, decode_npz, encode_npy, inspect_npy_zst
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.codecs.images import is_jpeg, shrink_jpeg
from penstock.shards.codecs.zstd import compress
from penstock.shards.guards.jpeg import inspect_jpeg
from penstock.shards.guards.npy import inspect_npy
from penstock.shards.guards.zip import inspect_zip
from penstock.shards.pack.masks import is_image, is_mask, mask_sizes, shrink_mask
from penstock.shards.pack.options import ArrayCodec, PackOptions
from penstock.shards.pack.records.columns import image_ending
from penstock.shards.pairing import canonical_suffix

StoredPart = tuple[str, bytes]
"""(suffix, bytes)"""


def _inspect_image(data: bytes) -> None:
    """Check a part that is named like a JPEG; it may be an image of another format, which is copied unchecked."""
    if is_jpeg(data) or image_ending(data) is None:
        inspect_jpeg(data)


_GUARDS: dict[str, Callable[[bytes], object]] = {
    "jpeg": _inspect_image,
    "npz": inspect_zip,
    "npy": inspect_npy,
    "npy.zst": inspect_npy_zst,
}
"""The check for a part that is copied as it is, by its codec."""


def convert_parts(parts: Iterable[StoredPart], options: PackOptions) -> list[StoredPart]:
    """Return the suffix and the bytes of every part to write; two parts with the same canonical suffix are an error.

    An error that is about a single part has the suffix of that part in `member`.
    """
    parts = list(parts)
    masks = mask_sizes(parts, options) if options.image_size is not None else {}
    stored: list[StoredPart] = []
    for suffix, data in parts:
        try:
            if suffix in masks:
                data = shrink_mask(suffix, data, masks[suffix])
            if is_image(suffix) and is_mask(suffix, options):
                stored.append((packed_suffix(suffix), data))
            else:
                stored += _convert_part(suffix, data, options)
        except SampleError as error:
            raise error.at(member=suffix) from None
    suffixes = [canonical_suffix(suffix) for suffix, _ in stored]
    if len(set(suffixes)) < len(suffixes):
        repeated = next(suffix for suffix in suffixes if suffixes.count(suffix) > 1)
        raise SampleError(f"two parts would both be stored as {repeated!r}", stage="pack", advice="Rename one of them.")
    return stored


def _convert_part(suffix: str, data: bytes, options: PackOptions) -> Iterator[StoredPart]:
    codec = codec_of(suffix)
    if codec in ("jpeg", "image") and options.image_size is not None and is_jpeg(data):
        yield packed_suffix(suffix), shrink_jpeg(data, options.image_size, options.side, options.quality)
    elif codec == "npz" and options.arrays != "keep":
        arrays = decode_npz(data)
        if not arrays:
            raise SampleError("the NPZ has no arrays", stage="pack", advice="Leave the sample out, or keep the NPZ.")
        for name, array in arrays.items():
            yield array_suffix(suffix, name, options.arrays), _encode_array(name, array, options)
    elif codec in ("npy", "npy.zst") and options.arrays != "keep":
        array = decode_npy(data) if codec == "npy" else decode_npy_zst(data)
        stem = _stem(suffix, codec)
        stored = _encode_array(stem.rpartition(".")[2], array, options)
        yield stem + (".npy.zst" if options.arrays == "zstd" else ".npy"), stored
    else:
        inspect = _GUARDS.get(codec)
        if inspect is not None:
            inspect(data)  # parts that are copied must at least be of the format that their suffix states
        yield packed_suffix(suffix), data


def array_names(suffix: str, data: bytes) -> list[str]:
    """Return the names of the arrays in a part, which `PackOptions.casts` may refer to; none if the part is bad."""
    codec = codec_of(suffix)
    if codec == "npz":
        try:
            return [entry.name.removesuffix(".npy") for entry in inspect_zip(data)]
        except GuardError:
            return []
    return [_stem(suffix, codec).rpartition(".")[2]] if codec in ("npy", "npy.zst") else []


def _stem(suffix: str, codec: str) -> str:
    return packed_suffix(suffix)[: -len("." + codec)]


def _encode_array(name: str, array: NDArray[Any], options: PackOptions) -> bytes:
    dtype = dict(options.casts).get(name)
    data = encode_npy(array if dtype is None else _cast(name, array, np.dtype(dtype)))
    return compress(data) if options.arrays == "zstd" else data


def _cast(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array in another dtype.

    A cast between float types may lose precision, but finite numbers must not become infinite. All other casts must be
    exact.
    """
    if array.dtype.kind not in "fiub":
        raise GuardError(f"array {name!r} of dtype {array.dtype} cannot be cast to {dtype}", stage="pack")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
        back = cast.astype(array.dtype)
    if dtype.kind == "f" and array.dtype.kind == "f":
        damaged = np.isfinite(array).sum() != np.isfinite(cast).sum()
    else:
        # Both comparisons are needed: -1 becomes 255 in uint8, and casting that back gives -1 again; int64 2**53 + 1
        # compares equal to the rounded float64, because numpy converts it for the comparison.
        damaged = not (np.array_equal(back, array) and np.array_equal(cast, array))
    if damaged:
        raise DecodeError(f"array {name!r} does not fit into {dtype}", stage="pack", advice="Choose a wider dtype.")
    return cast


def packed_key(key: str) -> str:
    """Return the key with every dot of its last component escaped: readers take the first dot as the suffix's start."""
    folder, slash, base = key.rpartition("/")
    return folder + slash + base.replace(".", "%2E")


def packed_suffix(suffix: str) -> str:
    """Return the suffix of a part whose bytes are kept: `_features.npz` becomes `.features.npz`."""
    return "." + suffix[1:] if suffix.startswith("_") else suffix


def array_suffix(suffix: str, array: str, codec: ArrayCodec) -> str:
    """Return the suffix of one array of an NPZ part, which is stored as a part of its own."""
    stem = packed_suffix(suffix)[: -len(".npz")]
    return f"{stem}.{quote(array, safe='')}.npy" + (".zst" if codec == "zstd" else "")
