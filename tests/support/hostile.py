"""Small files that are meant to break readers. Each has a single false or unsafe property.

They may crash or hang a decoder, so a test that decodes one does so in a child process.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import numpy as np

from penstock.errors import SettingError
from penstock.testing.corrupt import overwrite

TAR_BLOCK = 512
USTAR_MAGIC = b"ustar\x0000"
GNU_MAGIC = b"ustar  \x00"


def tar_header(
    name: str,
    size: int = 0,
    *,
    typeflag: bytes = b"0",
    prefix: str = "",
    magic: bytes = USTAR_MAGIC,
    raw_size: bytes | None = None,
    checksum: bytes | None = None,
    link: str = "",
) -> bytes:
    """Return one 512-byte header; `raw_size` (12 bytes) and `checksum` (8 bytes) replace the correct fields."""
    size_field = b"%011o\0" % size if raw_size is None else raw_size
    fields = (
        (name.encode(), 100),
        (b"0000644\0" + b"0000000\0" * 2, 24),  # mode, user, group
        (size_field, 12),
        (b"%011o\0" % 0, 12),  # modification time
        (b" " * 8, 8),  # the checksum is computed with spaces in its place
        (typeflag, 1),
        (link.encode(), 100),
        (magic, 8),
        (b"", 80),  # user and group names, device numbers
        (prefix.encode(), 155),
        (b"", 12),
    )
    for value, width in fields:
        if len(value) > width:
            raise SettingError(f"{value!r} does not fit a header field of {width} bytes")
    header = b"".join(value.ljust(width, b"\0") for value, width in fields)
    return overwrite(header, 148, b"%06o\0 " % sum(header) if checksum is None else checksum)


def base256(value: int) -> bytes:
    """Return a tar size field in GNU's binary form, which can hold sizes above 8 GiB and negative numbers."""
    return value.to_bytes(12, "big", signed=True) if value < 0 else (value | 1 << 95).to_bytes(12, "big")


def looping_tar() -> bytes:
    """Return two headers; the second states the size -512, so that the next header would be this one again."""
    return tar_header("first") + tar_header("looping", raw_size=base256(-TAR_BLOCK))


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _jpeg(sof: int, width: int, height: int, scans: bytes, precision: int = 8) -> bytes:
    """Return a greyscale JPEG whose only Huffman code is a single 0 bit, which means "no change"."""
    frame = struct.pack(">BHHB", precision, height, width, 1) + b"\x01\x11\x00"
    tables = b"".join(bytes((table, 1)) + bytes(16) for table in (0x00, 0x10))
    quantisers = _segment(0xDB, b"\x00" + b"\x10" * 64)
    head = quantisers + _segment(sof, frame) + _segment(0xC4, tables)
    return b"\xff\xd8" + head + scans + b"\xff\xd9"


def _scan(first: int, last: int, data: bytes) -> bytes:
    return _segment(0xDA, b"\x01\x01\x00" + bytes((first, last, 0))) + data


def jpeg_with_scans(count: int) -> bytes:
    """Return a progressive 64×64 JPEG with `count` scans of 18 bytes; a decoder goes over the whole image for each."""
    return _jpeg(0xC2, 64, 64, _scan(0, 0, bytes(8)) * count)


def jpeg_of_size(width: int, height: int) -> bytes:
    """Return a JPEG whose header states this size, with data for a few blocks; 65500×65500 would take gigabytes."""
    return _jpeg(0xC0, width, height, _scan(0, 63, bytes(16)))


def lossless_jpeg(width: int, height: int) -> bytes:
    """Return a lossless (SOF3) JPEG; libjpeg-turbo 3.1.2 writes past its buffer when it decodes one with scaling."""
    return _jpeg(0xC3, width, height, _scan(1, 0, bytes(-(-width * height // 8))))


def twelve_bit_jpeg(width: int, height: int) -> bytes:
    """Return an extended (SOF1) JPEG with 12-bit samples, which 8-bit decoders must refuse."""
    return _jpeg(0xC1, width, height, _scan(0, 63, bytes(width * height // 256 + 1)), precision=12)


def npy_claiming(shape: tuple[int, ...], dtype: str, data: bytes) -> bytes:
    """Return an NPY whose header states this shape and dtype, followed by any data."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def zip_bomb_npz(size_bytes: int = 32 << 20) -> bytes:
    """Return an NPZ that inflates to a thousand times its size."""
    return _zip({"features.npy": npy_claiming((size_bytes,), "|u1", bytes(size_bytes))}, zipfile.ZIP_DEFLATED)


def overlapping_npz() -> bytes:
    """Return an NPZ of two valid arrays, of which the second lies inside the data of the first."""
    inner = npy_claiming((4,), "|u1", b"data")
    record = _zip({"inner.npy": inner})
    record = record[: record.index(b"PK\x01\x02")]
    outer = npy_claiming((len(record),), "|u1", record)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("outer.npy"), outer)
        hidden = zipfile.ZipInfo("inner.npy")
        hidden.header_offset = buffer.getvalue().index(record)
        hidden.CRC, hidden.file_size, hidden.compress_size = zlib.crc32(inner), len(inner), len(inner)
        archive.filelist.append(hidden)
    return buffer.getvalue()


def encrypted_npz() -> bytes:
    """Return an NPZ whose only entry is flagged as encrypted, in the local header and in the directory."""
    plain = _zip({"features.npy": npy_claiming((4,), "|u1", b"data")})
    flagged = overwrite(plain, 6, b"\x01")
    return overwrite(flagged, plain.index(b"PK\x01\x02") + 8, b"\x01")


def pickle_npz() -> bytes:
    """Return an NPZ with an object array, which is stored as a pickle: loading it would run any code in it."""
    buffer = io.BytesIO()
    np.savez(buffer, features=np.array([{"key": "value"}], dtype=object))
    return buffer.getvalue()


def _zip(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=compression)
    return buffer.getvalue()
