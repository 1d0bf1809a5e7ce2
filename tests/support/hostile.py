"""Files made to break readers: each is small, and each lies about one thing only.

Hand them to a decoder in a child process, if at all: crashing or hanging it is what they are for.
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
) -> bytes:
    """One 512-byte header; `raw_size` (12 bytes) and `checksum` (8 bytes) replace the honest fields."""
    size_field = b"%011o\0" % size if raw_size is None else raw_size
    fields = (
        (name.encode(), 100),
        (b"0000644\0" + b"0000000\0" * 2, 24),  # mode, user, group
        (size_field, 12),
        (b"%011o\0" % 0, 12),  # modification time
        (b" " * 8, 8),  # the checksum is taken with blanks in its place
        (typeflag, 1),
        (b"", 100),  # link target
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
    """A tar size field in GNU's binary form, which can hold more than 8 GiB, and negative numbers."""
    return value.to_bytes(12, "big", signed=True) if value < 0 else (value | 1 << 95).to_bytes(12, "big")


def looping_tar() -> bytes:
    """Two headers, the second of size -512: where the next one should be, it finds itself again."""
    return tar_header("first") + tar_header("again", raw_size=base256(-TAR_BLOCK))


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _jpeg(sof: int, width: int, height: int, scans: bytes, precision: int = 8) -> bytes:
    """A greyscale JPEG whose only Huffman code is one 0 bit for "no change"."""
    frame = struct.pack(">BHHB", precision, height, width, 1) + b"\x01\x11\x00"
    tables = b"".join(bytes((table, 1)) + bytes(16) for table in (0x00, 0x10))
    quantisers = _segment(0xDB, b"\x00" + b"\x10" * 64)
    head = quantisers + _segment(sof, frame) + _segment(0xC4, tables)
    return b"\xff\xd8" + head + scans + b"\xff\xd9"


def _scan(first: int, last: int, data: bytes) -> bytes:
    return _segment(0xDA, b"\x01\x01\x00" + bytes((first, last, 0))) + data


def jpeg_with_scans(count: int) -> bytes:
    """A progressive 64×64 JPEG of `count` scans, 18 bytes each: every one costs a pass over the picture."""
    return _jpeg(0xC2, 64, 64, _scan(0, 0, bytes(8)) * count)


def jpeg_of_size(width: int, height: int) -> bytes:
    """A baseline header that claims this size, with data for a few blocks: gigabytes for 65500×65500."""
    return _jpeg(0xC0, width, height, _scan(0, 63, bytes(16)))


def lossless_jpeg(width: int, height: int) -> bytes:
    """A lossless (SOF3) JPEG: decoding it with scaling writes past the buffer in libjpeg-turbo 3.1.2."""
    return _jpeg(0xC3, width, height, _scan(1, 0, bytes(-(-width * height // 8))))


def twelve_bit_jpeg(width: int, height: int) -> bytes:
    """An extended (SOF1) JPEG of 12-bit samples, which decoders of 8 bits must not touch."""
    return _jpeg(0xC1, width, height, _scan(0, 63, bytes(width * height // 256 + 1)), precision=12)


def npy_claiming(shape: tuple[int, ...], dtype: str, data: bytes) -> bytes:
    """An NPY whose header says this shape and dtype, whatever the data behind it is."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def zip_bomb_npz(size_bytes: int = 32 << 20) -> bytes:
    """An NPZ a thousand times smaller than the zeros in it."""
    return _zip({"features.npy": npy_claiming((size_bytes,), "|u1", bytes(size_bytes))}, zipfile.ZIP_DEFLATED)


def overlapping_npz() -> bytes:
    """Two sound arrays of which the second lies, with its local header, inside the data of the first."""
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
    """An NPZ whose only entry is flagged as encrypted, in the local header and in the directory."""
    plain = _zip({"features.npy": npy_claiming((4,), "|u1", b"data")})
    flagged = overwrite(plain, 6, b"\x01")
    return overwrite(flagged, plain.index(b"PK\x01\x02") + 8, b"\x01")


def pickle_npz() -> bytes:
    """An NPZ with an object array, that is a pickle: loading it would run whatever it says."""
    buffer = io.BytesIO()
    np.savez(buffer, features=np.array([{"never": "loaded"}], dtype=object))
    return buffer.getvalue()


def _zip(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=compression)
    return buffer.getvalue()
