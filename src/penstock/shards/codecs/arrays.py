"""Decode arrays from NPY, zstd-NPY and NPZ, and encode NPY. Pickles are never read.

Decoded arrays are read-only views: of the given data where it holds the array uncompressed (NPY, stored NPZ entries),
else of newly inflated memory.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from penstock.errors import DecodeError, GuardError, SampleError
from penstock.shards.codecs.zstd import decompress, decompress_prefix
from penstock.shards.guards.buffer import Buffer
from penstock.shards.guards.npy import MAX_HEADER_BYTES, NpyHeader, inspect_npy
from penstock.shards.guards.zip import DEFLATED, MAX_ENTRY_BYTES, ZipEntry, inspect_zip

_ADVICE = "Copy or download it again, or leave the sample out"


def decode_npy(data: Buffer) -> NDArray[Any]:
    """Return the array in an NPY as a read-only view of `data`, without a copy."""
    header = inspect_npy(data)
    array: NDArray[Any] = np.ndarray(
        header.shape,
        header.dtype,
        buffer=data,
        offset=header.data_offset,
        order="F" if header.fortran_order else "C",
    )
    array.flags.writeable = False
    return array


def encode_npy(array: NDArray[Any]) -> bytes:
    """Encode an array as NPY version 1.0 in C order; its data begins at a multiple of 64 bytes."""
    descr = array.dtype.str
    if np.dtype(descr) != array.dtype:  # structured and extension dtypes would lose their meaning
        raise SampleError(f"an array of {array.dtype} has no plain NPY form", stage="encode")
    out = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(out, fields)
    header = out.getvalue()
    inspect_npy(header, len(header) + array.nbytes)  # nothing is written that could not be read again
    return header + array.tobytes()


def decode_npy_zst(data: Buffer) -> NDArray[Any]:
    """Return the array in a zstd-compressed NPY as a read-only view of the inflated bytes."""
    return decode_npy(decompress(data, MAX_ENTRY_BYTES + MAX_HEADER_BYTES))


def inspect_npy_zst(data: Buffer) -> NpyHeader:
    """Return the header of a zstd-compressed NPY; only the beginning is inflated."""
    return inspect_npy(*decompress_prefix(data, 2 * MAX_HEADER_BYTES))


def decode_npz(data: Buffer, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an NPZ, or all of them; only those are inflated."""
    archive = NpzArchive(data)
    return {name: archive.array(name) for name in (archive.entries if names is None else names)}


class NpzArchive:
    """An NPZ whose directory was read and checked, so that several arrays can be taken from it."""

    __slots__ = ("data", "entries")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.entries = _arrays_of(data)
        """The entry of each array, by name."""

    def array(self, name: str) -> NDArray[Any]:
        """Inflate an array, and compare it with its checksum."""
        entry = self.entries.get(name)
        if entry is None:
            raise DecodeError(
                f"the NPZ has no array {name!r}; it has {', '.join(map(repr, sorted(self.entries))) or 'none'}",
                stage="decode",
                advice="Name an array that it has",
            )
        content: Buffer = memoryview(self.data).cast("B")[entry.start : entry.start + entry.compressed_length]
        if entry.method == DEFLATED:
            content = _inflate(content, name, entry.length)
        if deflate.crc32(content) != entry.crc32:
            raise DecodeError(f"array {name!r} of the NPZ fails its checksum", stage="decode", advice=_ADVICE)
        try:
            return decode_npy(content)
        except GuardError as error:
            reason = f"array {name!r} of the NPZ: {error.reason}"
            raise GuardError(reason, stage=error.stage, advice=error.advice) from error


def _arrays_of(data: Buffer) -> dict[str, ZipEntry]:
    entries = inspect_zip(data)
    arrays = {entry.name.removesuffix(".npy"): entry for entry in entries}
    if len(arrays) != len(entries):
        raise GuardError("the NPZ has two arrays of the same name", stage="guard", advice="Save it again")
    return arrays


def _inflate(content: Buffer, name: str, length: int) -> bytearray:
    """Inflate to exactly `length` bytes, as the guard has allowed; libdeflate itself would accept fewer."""
    try:
        inflated: bytearray = deflate.deflate_decompress(content, length)
    except deflate.DeflateError as error:
        raise DecodeError(
            f"array {name!r} of the NPZ is damaged or has a false size", stage="decode", advice=_ADVICE
        ) from error
    if len(inflated) != length:
        raise DecodeError(
            f"array {name!r} of the NPZ inflates to {len(inflated)} bytes, not to {length}",
            stage="decode",
            advice=_ADVICE,
        )
    return inflated
