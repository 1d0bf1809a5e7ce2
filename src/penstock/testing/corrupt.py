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
"""Longest block that is moved, removed or inserted, so that a mutant still resembles the original."""


def truncate(data: bytes, length: int) -> bytes:
    """Return only the first `length` bytes, as after an interrupted copy."""
    _check_span(data, 0, length)
    return data[:length]


def flip_bit(data: bytes, offset: int, bit: int = 0) -> bytes:
    """Invert one bit, as a bad cable does; bit 0 is the lowest."""
    _check_span(data, offset, 1)
    if not 0 <= bit <= 7:
        raise SettingError(f"bit {bit} is not within a byte")
    return data[:offset] + bytes((data[offset] ^ (1 << bit),)) + data[offset + 1 :]


def overwrite(data: bytes, offset: int, new: bytes) -> bytes:
    """Replace as many bytes by `new`; the length does not change."""
    _check_span(data, offset, len(new))
    return data[:offset] + new + data[offset + len(new) :]


def delete(data: bytes, offset: int, length: int) -> bytes:
    """Remove `length` bytes; those that follow move forward."""
    _check_span(data, offset, length)
    return data[:offset] + data[offset + length :]


def insert(data: bytes, offset: int, new: bytes) -> bytes:
    """Insert `new` before `offset`; the bytes that follow move back."""
    _check_span(data, offset, 0)
    return data[:offset] + new + data[offset:]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Apply one small random mutation, for fuzzing; it takes a few microseconds on inputs of some KB.

    Occasionally a mutation leaves the data unchanged, for example a zero written over a zero.
    """
    if not data:
        return rng.randbytes(1 + int(rng.random() * _MAX_BLOCK))
    return _MUTATIONS[int(rng.random() * len(_MUTATIONS))](data, rng.random)


def _check_span(data: bytes, offset: int, length: int) -> None:
    if offset < 0 or length < 0 or offset + length > len(data):
        raise SettingError(f"bytes {offset}..{offset + length} are not within data of {len(data)} bytes")


# The single mutations. `draw` is Random.random: int(draw() * n) costs a tenth of randrange(n).
_Draw = Callable[[], float]


def _flip(data: bytes, draw: _Draw) -> bytes:
    index = int(draw() * len(data))
    return data[:index] + bytes((data[index] ^ (1 << int(draw() * 8)),)) + data[index + 1 :]


def _edge_byte(data: bytes, draw: _Draw) -> bytes:
    index = int(draw() * len(data))
    return data[:index] + _EDGE_BYTES[int(draw() * len(_EDGE_BYTES))] + data[index + 1 :]


def _edge_integer(data: bytes, draw: _Draw) -> bytes:
    new = _EDGE_INTEGERS[int(draw() * len(_EDGE_INTEGERS))][: len(data)]
    index = int(draw() * (len(data) - len(new) + 1))
    return data[:index] + new + data[index + len(new) :]


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
    index = int(draw() * (len(data) + 1))
    noise = int(draw() * (1 << 53)).to_bytes(7, "little")
    return data[:index] + noise[: 1 + int(draw() * 7)] + data[index:]


def _tweak_digit(data: bytes, draw: _Draw) -> bytes:
    """Change the first digit after a random offset: sizes in tar and shapes in NPY are ASCII."""
    start = int(draw() * len(data))
    for index in range(start, min(len(data), start + _MAX_BLOCK)):
        if 0x30 <= data[index] <= 0x39:
            return data[:index] + bytes((0x30 + int(draw() * 10),)) + data[index + 1 :]
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
