"""Memory used again and again: the same piece, and one that the system can copy into quickly."""

import pytest

from penstock.shards.codecs.scratch import CACHE_LINE_BYTES, MAX_REUSED_BYTES, ScratchBuffer


@pytest.mark.parametrize("shape", [(1,), (5000,), (3, 700, 1001), (MAX_REUSED_BYTES + 1,)])
def test_it_begins_with_a_cache_line(shape):
    scratch = ScratchBuffer()
    for larger in (0, 1):  # the second time it may have to grow
        array = scratch.array((shape[0] + larger, *shape[1:]))
        assert array.ctypes.data % CACHE_LINE_BYTES == 0
        assert array.flags.c_contiguous


def test_what_fits_into_the_piece_gets_the_same_memory():
    scratch = ScratchBuffer()
    first = scratch.array((100, 100))
    assert scratch.array((99, 3)).ctypes.data == first.ctypes.data


def test_a_piece_that_is_too_large_to_keep_is_not_kept():
    scratch = ScratchBuffer()
    kept = scratch.array((1000,))
    scratch.array((MAX_REUSED_BYTES + 1,))
    assert scratch.array((1000,)).ctypes.data == kept.ctypes.data
