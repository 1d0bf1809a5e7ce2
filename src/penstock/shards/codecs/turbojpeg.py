"""Decode JPEGs with TurboJPEG, and decide which of its warnings are harmless.

libjpeg goes on after most defects, but reports only its first warning, so a harmless one may hide another that stands
for lost pixels. A JPEG with a harmless defect is therefore decoded again without the defect, or in pieces.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from penstock.errors import DecodeError
from penstock.shards.guards.buffer import Buffer, flat_view
from penstock.shards.guards.jpeg import jpeg_segments

_UNUSED_HEADER = ("unknown JFIF revision number", "bad ICC marker", "Invalid SOS parameters for sequential JPEG")
"""Warnings about numbers and metadata that are not used. Samsung's phones write such SOS parameters."""
_find_leftover = re.compile(r"(\d+) extraneous bytes before marker 0x(d\d)").search
"""The warning that the decoder did not need all bytes before a restart marker (D0 to D7) or the end marker (D9)."""
_END = "d9"
MAX_LEFTOVER_BYTES = 16
"""Most bytes of any value that may be left over. More are padding if they are all alike, else they are the pixels of an
image whose decoding went wrong before."""
MAX_INTERVALS = 1 << 14
"""Most restart intervals that are decoded one by one, at about 10 microseconds each."""
MAX_TABLE_BYTES = 1 << 12
"""Most bytes of tables, which are copied for each interval; the usual tables of a colour JPEG take 600."""

_JFIF, _ICC = (0xE0, b"JFIF\0"), (0xE2, b"ICC_PROFILE\0")
_COMMENT, _RESTART_INTERVAL, _SOS, _EOI = 0xFE, 0xDD, 0xDA, b"\xff\xd9"
_FRAMES, _TABLES = (0xC0, 0xC1), (0xC4, 0xDB)
_next_marker = re.compile(rb"\xff[^\x00\xff]").search


def decode_with_turbojpeg(
    data: Buffer,
    colours: str,
    height: int = 0,
    width: int = 0,
    *,
    coarse_chroma: bool = False,
    memory: NDArray[np.uint8] | None = None,
) -> Any:
    """Return the pixels, shrunk by the largest factor that keeps height and width; every other warning is an error."""
    strict, repaired = True, False
    while True:
        try:
            return simplejpeg.decode_jpeg(
                data,
                colours,
                fastupsample=coarse_chroma,
                min_height=height,
                min_width=width,
                strict=strict,
                buffer=memory,
            )
        except ValueError as error:
            message = str(error)
        if not repaired and any(warning in message for warning in _UNUSED_HEADER):
            data, repaired = _with_usual_header(data), True
        elif strict and _is_harmless_leftover(bytes(flat_view(data)), message):
            strict = False
        else:
            raise jpeg_failure(message)


def jpeg_failure(message: str) -> DecodeError:
    """Return the error for a JPEG that a decoder refuses, or decodes with a loss."""
    return DecodeError(
        f"the JPEG decoder reports: {message}",
        stage="decode",
        advice="The image is damaged: copy or download it again, or leave the sample out",
    )


def _with_usual_header(data: Buffer) -> bytearray:
    """Return a copy with a known JFIF revision, its colour profile as a comment, and the SOS parameters 0, 63, 0."""
    copy = bytearray(data)
    segments = jpeg_segments(flat_view(data))
    for marker, start, _ in segments:
        if marker == _JFIF[0] and copy.startswith(_JFIF[1], start):
            copy[start + len(_JFIF[1])] = 1
        elif marker == _ICC[0]:
            copy[start - 3] = _COMMENT
    if any(marker in _FRAMES for marker, _, _ in segments):
        end = segments[-1][2]
        copy[end - 3 : end] = b"\0\x3f\0"
    return copy


def _is_harmless_leftover(data: bytes, message: str) -> bool:
    """Return whether the warning is about padding: at the end of the image, or of restart intervals."""
    found = _find_leftover(message)
    if found is None:
        return False
    count, marker = int(found[1]), found[2]
    if marker != _END:
        return _has_all_intervals(data)
    if count <= MAX_LEFTOVER_BYTES:
        return True
    end = data.find(_EOI, jpeg_segments(data)[-1][2])
    return len(set(data[max(0, end - count) : end])) == 1


def _has_all_intervals(data: bytes) -> bool:
    """Decode each restart interval as an image of its own, so that no warning hides another.

    Logitech's webcams put padding before restart markers.
    """
    segments = jpeg_segments(data)
    by_marker = {marker: (start, end) for marker, start, end in segments}
    frame = next((by_marker[marker] for marker in _FRAMES if marker in by_marker), None)
    interval = int.from_bytes(data[slice(*by_marker.get(_RESTART_INTERVAL, (0, 0)))][:2], "big")
    tables = b"".join(data[start - 4 : end] for marker, start, end in segments if marker in _TABLES)
    scan_start, scan_end = by_marker[_SOS]
    if frame is None or not interval or len(tables) > MAX_TABLE_BYTES or data[scan_start] != data[frame[0] + 5]:
        return False  # progressive, without intervals, or with several scans
    factors = data[frame[0] + 7 : frame[1] : 3]
    across, down = (1, 1) if len(factors) == 1 else (max(f >> 4 for f in factors), max(f & 15 for f in factors))
    height, width = (int.from_bytes(data[frame[0] + at : frame[0] + at + 2], "big") for at in (1, 3))
    blocks = -(-height // (8 * down)) * -(-width // (8 * across))
    if -(-blocks // interval) > MAX_INTERVALS or 8 * across * interval > 0xFFFF:
        return False
    start = scan_end
    for number, first in enumerate(range(0, blocks, interval)):
        last = first + interval >= blocks
        marker = _next_marker(data, start)
        if marker is None or marker[0][1] != (_EOI[1] if last else 0xD0 + number % 8):
            return False
        sides = (8 * down).to_bytes(2, "big") + (8 * across * min(interval, blocks - first)).to_bytes(2, "big")
        header = data[frame[0] - 4 : frame[0] + 1] + sides + data[frame[0] + 5 : frame[1]]
        piece = b"\xff\xd8" + tables + header + data[scan_start - 4 : scan_end] + data[start : marker.start()] + _EOI
        try:
            decode_with_turbojpeg(piece, "GRAY")
        except DecodeError:
            return False
        start = marker.end()
    return True
