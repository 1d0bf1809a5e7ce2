"""Byte-level corrupters: pure functions from bytes to damaged bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.errors import SettingError

_EDGE_BYTES = (b"\x00", b"\xff", b"\x7f", b"\x80")
_EDGE_INTEGERS = tuple(
    dict.fromkeys(
        (value % (1 << 8 * width)).to_bytes(width, order)
        for width in (2, 4, 8)
        for value in (0, 1, -1, 1 << (8 * width - 1), (1 << (8 * width - 1)) - 1, 1 << 4 * width, 65500)
        for order in ("little", "big")
    )
)
_MAX_BLOCK = 64
"""Blocks moved, removed or inserted stay short, so that a mutant still resembles what it was."""


def truncate(data: bytes, length: int) -> bytes:
    """Only the first `length` bytes, as after a broken copy."""
    _check_span(data, 0, length)
    return data[:length]


def flip_bit(data: bytes, offset: int, bit: int = 0) -> bytes:
    """One bit inverted, as by a bad cable; bit 0 is the lowest."""
    _check_span(data, offset, 1)
    if not 0 <= bit <= 7:
        raise SettingError(f"bit {bit} is not within a byte")
    return data[:offset] + bytes((data[offset] ^ (1 << bit),)) + data[offset + 1 :]


def overwrite(data: bytes, offset: int, new: bytes) -> bytes:
    """`new` in place of as many old bytes; the length stays."""
    _check_span(data, offset, len(new))
    return data[:offset] + new + data[offset + len(new) :]


def delete(data: bytes, offset: int, length: int) -> bytes:
    """`length` bytes gone; what followed moves up."""
    _check_span(data, offset, length)
    return data[:offset] + data[offset + length :]


def insert(data: bytes, offset: int, new: bytes) -> bytes:
    """`new` squeezed in before `offset`; what followed moves down."""
    _check_span(data, offset, 0)
    return data[:offset] + new + data[offset:]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One small random mutation, for fuzzing: a few microseconds on inputs of some KB.

    Now and then a mutation happens to leave the data as it was (a zero written over a zero).
    """
    if not data:
        return rng.randbytes(1 + int(rng.random() * _MAX_BLOCK))
    return _MUTATIONS[int(rng.random() * len(_MUTATIONS))](data, rng.random)


def _check_span(data: bytes, offset: int, length: int) -> None:
    if offset < 0 or length < 0 or offset + length > len(data):
        raise SettingError(f"bytes {offset}..{offset + length} are not within data of {len(data)} bytes")


# The mutations proper. `draw` is Random.random: int(draw() * n) costs a tenth of randrange(n).
_Draw = Callable[[], float]


def _flip(data: bytes, draw: _Draw) -> bytes:
    at = int(draw() * len(data))
    return data[:at] + bytes((data[at] ^ (1 << int(draw() * 8)),)) + data[at + 1 :]


def _edge_byte(data: bytes, draw: _Draw) -> bytes:
    at = int(draw() * len(data))
    return data[:at] + _EDGE_BYTES[int(draw() * len(_EDGE_BYTES))] + data[at + 1 :]


def _edge_integer(data: bytes, draw: _Draw) -> bytes:
    new = _EDGE_INTEGERS[int(draw() * len(_EDGE_INTEGERS))][: len(data)]
    at = int(draw() * (len(data) - len(new) + 1))
    return data[:at] + new + data[at + len(new) :]


def _block(data: bytes, draw: _Draw) -> tuple[int, int]:
    start = int(draw() * len(data))
    return start, min(len(data), start + 1 + int(draw() * _MAX_BLOCK))


def _delete_block(data: bytes, draw: _Draw) -> bytes:
    start, stop = _block(data, draw)
    return data[:start] + data[stop:]


def _duplicate_block(data: bytes, draw: _Draw) -> bytes:
    start, stop = _block(data, draw)
    return data[:stop] + data[start:]


def _swap_blocks(data: bytes, draw: _Draw) -> bytes:
    start, middle = _block(data, draw)
    stop = min(len(data), middle + 1 + int(draw() * _MAX_BLOCK))
    return data[:start] + data[middle:stop] + data[start:middle] + data[stop:]


def _truncate(data: bytes, draw: _Draw) -> bytes:
    return data[: int(draw() * len(data))]


def _insert_noise(data: bytes, draw: _Draw) -> bytes:
    at = int(draw() * (len(data) + 1))
    noise = int(draw() * (1 << 53)).to_bytes(7, "little")
    return data[:at] + noise[: 1 + int(draw() * 7)] + data[at:]


def _tweak_digit(data: bytes, draw: _Draw) -> bytes:
    """Sizes in tar and shapes in NPY are ASCII: change the first digit found after a random place."""
    start = int(draw() * len(data))
    for at in range(start, min(len(data), start + _MAX_BLOCK)):
        if 0x30 <= data[at] <= 0x39:
            return data[:at] + bytes((0x30 + int(draw() * 10),)) + data[at + 1 :]
    return _edge_byte(data, draw)


_MUTATIONS = (
    _flip,
    _edge_byte,
    _edge_integer,
    _delete_block,
    _duplicate_block,
    _swap_blocks,
    _truncate,
    _insert_noise,
    _tweak_digit,
)
