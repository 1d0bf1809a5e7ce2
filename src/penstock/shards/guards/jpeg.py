"""Read a JPEG's header up to its first scan, and refuse images that a decoder should not be given.

The check is strict on purpose: an image that this reader and libjpeg could understand differently is refused. So are
lossless frames, on which libjpeg-turbo 3.1.2, as called by simplejpeg 1.9 with scaling, writes past the end of its
output. Stray bytes between header segments, which some editors leave, are cut out before a decoder sees them.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from penstock.errors import GuardError
from penstock.shards.guards.buffer import Buffer, flat_view

MAX_PIXELS = 2**28
"""Largest image. The largest cameras have 200 megapixels; decoded to RGB this many take 0.8 GB."""
MAX_SCANS = 100
"""Largest number of scans. Encoders write 1 to about 20; for each, the decoder goes over the whole image again."""
MAX_SCANNED_PIXELS = 2**32
"""Largest product of scans and pixels: 16 scans of the largest image, some seconds of decoding."""
MAX_PIXELS_PER_BYTE = 512
"""Huffman coding spends at least one bit on each 8×8 block, so fewer bytes cannot hold the image."""
MAX_SEGMENTS = 2048
"""Largest number of header segments. Colour profiles, previews and depth maps are split into segments of 64 KB, which
makes hundreds in practice, not thousands."""
MAX_FILL_BYTES = 256
"""Largest run of 0xFF bytes before a marker: any number is legal, but only a few are useful, for alignment."""

STRAY_BYTES = 0
"""The marker of bytes between segments that belong to none. libjpeg skips them with a warning."""

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_find_marker = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]").search
"""Finds a marker that may begin a segment: others (FF 00, FF 01, and FF D0 to FF D7) have no meaning in a header."""
_TABLES_AND_METADATA = frozenset((0xC4, 0xCC, *range(0xDB, 0xFF)))
_read_marker_and_length = struct.Struct(">BBH").unpack_from
_FRAME = struct.Struct(">BHHB")
_SAMPLING_FACTORS = frozenset(across << 4 | down for across in range(1, 5) for down in range(1, 5))
_SEQUENTIAL_FRAMES = (0xC0, 0xC1)
_PROGRESSIVE_FRAME = 0xC2
_REFUSED_FRAMES = {
    0xC3: "lossless (SOF3)",
    0xC5: "hierarchical (SOF5)",
    0xC6: "hierarchical progressive (SOF6)",
    0xC7: "hierarchical lossless (SOF7)",
    0xC8: "of a reserved kind (JPG)",
    0xC9: "arithmetic-coded (SOF9)",
    0xCA: "arithmetic-coded progressive (SOF10)",
    0xCB: "arithmetic-coded lossless (SOF11)",
    0xCD: "arithmetic-coded hierarchical (SOF13)",
    0xCE: "arithmetic-coded hierarchical progressive (SOF14)",
    0xCF: "arithmetic-coded hierarchical lossless (SOF15)",
}
_REENCODE = "Re-encode the image as an ordinary 8-bit JPEG, or leave the sample out"
_FETCH_AGAIN = "Copy or download it again, or leave the sample out"


class JpegInfo(NamedTuple):
    """The facts in the header of an image that may be decoded."""

    width: int
    height: int
    components: int
    """1 greyscale, 3 colour, 4 CMYK or YCCK."""
    progressive: bool
    stray_bytes: bool = False
    """Whether bytes between header segments belong to none of them."""

    @property
    def cmyk(self) -> bool:
        """Whether the image has four ink components, which the JPEG decoder does not convert to RGB."""
        return self.components == 4


def inspect_jpeg(data: Buffer) -> JpegInfo:
    """Return the facts of a decodable JPEG in a few microseconds; GuardError on anything else."""
    view = flat_view(data)
    info: JpegInfo | None = None
    stray_bytes = False
    for marker, start, end in jpeg_segments(view, skip=_TABLES_AND_METADATA):
        if marker == STRAY_BYTES:
            stray_bytes = True
        elif marker != _SOS:
            if info is not None:
                raise _refusal("the JPEG has two frame headers")
            info = _read_frame(view, marker, start, end)
        elif info is not None:
            _check_scans(view, info, start, end)
            return info._replace(stray_bytes=True) if stray_bytes else info
    raise _refusal("the JPEG has a scan before any frame header")


def jpeg_segments(view: bytes | memoryview, skip: frozenset[int] = frozenset()) -> list[tuple[int, int, int]]:
    """Return marker, start and end of the content of each header segment; the last one is the header of the first scan.

    Stray bytes between segments are listed with the marker STRAY_BYTES. Segments whose marker is in `skip` are stepped
    over. Most are, and this is the hot loop.
    """
    size = len(view)
    if size < 4 or view[0] != 0xFF or view[1] != _SOI:
        raise _refusal(
            "not a JPEG: it does not begin with FF D8", "Check what the file really is; its name may be wrong"
        )
    segments = []
    offset = 2
    for _ in range(MAX_SEGMENTS):
        if offset + 4 > size:
            raise _refusal(f"the JPEG is cut short in its header, at byte {offset} of {size}", _FETCH_AGAIN)
        lead, marker, length = _read_marker_and_length(view, offset)
        if marker in skip and lead == 0xFF and length >= 2:
            offset += 2 + length
            continue
        if marker == 0xFF == lead:
            offset = _skip_fill(view, offset)
            continue
        if lead != 0xFF or marker < 0x02 or 0xD0 <= marker <= 0xD7:
            segments.append((STRAY_BYTES, offset, _next_segment(view, offset)))
            offset = segments[-1][2]
            continue
        end = offset + 2 + length
        if marker < 0xC0 or marker in (_SOI, _EOI) or length < 2 or end > size:
            raise _broken_segment(offset, marker, length)
        segments.append((marker, offset + 4, end))
        if marker == _SOS:
            return segments
        offset = end
    raise _refusal(f"the JPEG has more than {MAX_SEGMENTS} header segments")


def without_stray_bytes(data: Buffer) -> bytes:
    """Return a copy of the JPEG without stray bytes between its header segments."""
    view, parts, begin = flat_view(data), [], 0
    for marker, start, end in jpeg_segments(view):
        if marker == STRAY_BYTES:
            parts.append(view[begin:start])
            begin = end
    return b"".join((*parts, view[begin:]))


def _next_segment(view: bytes | memoryview, offset: int) -> int:
    """Return the offset of the next marker that may begin a segment."""
    found = _find_marker(view, offset)
    if found is None:
        raise _refusal(f"the JPEG has no segment after byte {offset}", _FETCH_AGAIN)
    return found.start()


def _broken_segment(offset: int, marker: int, length: int) -> GuardError:
    if marker < 0xC0 or marker in (_SOI, _EOI):
        return _refusal(f"the JPEG has marker FF {marker:02X} where its header should go on, at byte {offset}")
    if length < 2:
        return _refusal(f"the JPEG has a segment shorter than its own length field, at byte {offset}")
    return _refusal(f"the JPEG is cut short in its header, in the segment at byte {offset}", _FETCH_AGAIN)


def _skip_fill(view: bytes | memoryview, offset: int) -> int:
    """Return the offset of the last 0xFF of a run, which a whole marker and length must follow."""
    last = min(offset + MAX_FILL_BYTES, len(view) - 4)
    for position in range(offset, last + 1):
        if view[position + 1] != 0xFF:
            return position
    raise _refusal(f"the JPEG has nothing but fill bytes after byte {offset}")


def _read_frame(view: bytes | memoryview, marker: int, start: int, end: int) -> JpegInfo:
    progressive = marker == _PROGRESSIVE_FRAME
    if not progressive and marker not in _SEQUENTIAL_FRAMES:
        raise _refusal(f"the JPEG is {_REFUSED_FRAMES[marker]}, which the decoder does not handle safely")
    if end - start < _FRAME.size:
        raise _refusal("the JPEG's frame header has the wrong length")
    precision, height, width, components = _FRAME.unpack_from(view, start)
    if end - start != _FRAME.size + 3 * components:
        raise _refusal("the JPEG's frame header has the wrong length")
    if precision != 8:
        raise _refusal(f"the JPEG has {precision} bits per sample; only 8 can be decoded")
    if components not in (1, 3, 4):
        raise _refusal(f"the JPEG has {components} components; only 1, 3 and 4 are defined")
    if not height or not width:
        raise _refusal(f"the JPEG says it is {width}×{height} pixels")
    if width * height > MAX_PIXELS:
        raise _refusal(
            f"the JPEG says it is {width}×{height} pixels; more than {MAX_PIXELS} are not decoded",
            "Shrink or tile the image before it goes into a shard",
        )
    for position in range(start + 7, end, 3):
        if view[position] not in _SAMPLING_FACTORS:
            raise _refusal(f"the JPEG has impossible sampling factors {view[position]:#04x}")
    return JpegInfo(width, height, components, progressive)


def _check_scans(view: bytes | memoryview, info: JpegInfo, start: int, end: int) -> None:
    """Check that the end marker exists and that the decoder does not go over the image too many times."""
    if end - start < 6 or end - start != 4 + 2 * view[start]:
        raise _refusal("the JPEG's scan header has the wrong length")
    coded = len(view) - end
    if info.width * info.height > coded * MAX_PIXELS_PER_BYTE:
        raise _refusal(
            f"the JPEG says it is {info.width}×{info.height} pixels, which {coded} bytes cannot hold",
            _FETCH_AGAIN,
        )
    if info.progressive or view[start] < info.components:
        # Coded data never contains FF DA, but other segments and trailing bytes may: this is a fast upper bound.
        scans = 1 + bytes(view[end:]).count(b"\xff\xda")
        if scans > MAX_SCANS or scans * info.width * info.height > MAX_SCANNED_PIXELS:
            raise _refusal(f"the JPEG has up to {scans} scans over {info.width}×{info.height} pixels: too much work")
    if view[-1] == _EOI and view[-2] == 0xFF:
        return
    # Phones append films and depth maps, and some tools padding: an end marker anywhere after the scan header counts.
    if bytes(view[end:]).rfind(b"\xff\xd9") < 0:
        raise _refusal("the JPEG is cut short: it has no end marker", _FETCH_AGAIN)


def _refusal(reason: str, advice: str = _REENCODE) -> GuardError:
    return GuardError(reason, stage="guard", advice=advice)
