"""The layout of arrays, ragged buffers and encoded sizes in a slab."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.slab_layout import (
    ENCODED_SIZE_FIELDS,
    MAX_RAGGED_BYTES,
    PAGE,
    RaggedView,
    SlabLayout,
    SlotSpec,
    store_ragged,
)

SLOTS = {"image": SlotSpec((3, 5, 7), "|u1"), "label": SlotSpec((), "<i8"), "features": SlotSpec((11,), "<f2")}


@pytest.mark.parametrize(
    ("shape", "dtype", "size_bytes"), [((3, 224, 224), "uint8", 150528), ((), "<i8", 8), ((0, 4), "<f4", 0)]
)
def test_slot_size_is_shape_times_itemsize(shape, dtype, size_bytes):
    assert SlotSpec(shape, dtype).size == size_bytes


def test_a_slot_of_more_than_two_gigabytes_does_not_overflow():
    assert SlotSpec((1 << 16, 1 << 16), "<f8").size == 1 << 35


def test_arrays_have_the_batch_as_their_first_axis():
    layout = SlabLayout(SLOTS, 4)
    arrays = layout.arrays(memoryview(bytearray(layout.size)))
    assert {name: (array.shape, array.dtype.str) for name, array in arrays.items()} == {
        "image": ((4, 3, 5, 7), "|u1"),
        "label": ((4,), "<i8"),
        "features": ((4, 11), "<f2"),
    }


def test_arrays_are_views_of_the_slab_that_begins_at_start():
    layout = SlabLayout(SLOTS, 2)
    memory = memoryview(bytearray(3 * layout.size))
    layout.arrays(memory, layout.size)["label"][1] = 77
    assert layout.arrays(memory, layout.size)["label"].tolist() == [0, 77]
    assert not any(memory[: layout.size])
    assert not any(memory[2 * layout.size :])


def test_a_slab_without_arrays_has_one_page():
    layout = SlabLayout({}, 8)
    assert layout.size == PAGE
    assert layout.arrays(memoryview(bytearray(PAGE))) == {}


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), max_size=3).map(tuple), st.sampled_from(["|u1", "<f2", "<f4", "<i8", ">i4"])
        ),
        max_size=5,
    ),
    st.integers(1, 9),
)
def test_arrays_start_on_pages_do_not_overlap_and_fit_the_slab(specs, batch_size):
    slots = {f"field{number}": SlotSpec(*spec) for number, spec in enumerate(specs)}
    layout = SlabLayout(slots, batch_size)
    assert layout.size % PAGE == 0
    end = 0
    for name, start in layout.offsets.items():
        assert start % PAGE == 0
        assert start >= end
        end = start + slots[name].size * batch_size
    assert end <= layout.size
    arrays = layout.arrays(memoryview(bytearray(layout.size)))
    for number, array in enumerate(arrays.values()):
        array[...] = number + 1
    assert all(np.all(array == number + 1) for number, array in enumerate(arrays.values()))


# -- buffers for arrays without a fixed shape --------------------------------------------------------------------------


def test_every_slot_has_ragged_buffers_of_whole_pages_behind_the_arrays():
    layout = SlabLayout(SLOTS, 4, {"boxes": 100, "mask": PAGE + 1})
    memory = memoryview(bytearray(2 * layout.size))
    buffers = layout.ragged_buffers(memory, layout.size)
    assert {name: buffer.shape for name, buffer in buffers.items()} == {"boxes": (4, PAGE), "mask": (4, 2 * PAGE)}
    for number, view in enumerate([*layout.arrays(memory, layout.size).values(), *buffers.values()]):
        view[...] = number + 1
    assert all(np.all(array == number + 1) for number, array in enumerate(layout.arrays(memory, layout.size).values()))
    assert np.all(buffers["boxes"] == 4)
    assert layout.size == 3 * PAGE + 4 * 3 * PAGE
    assert not any(memory[: layout.size])


def test_ragged_buffers_are_limited_so_that_the_last_slots_have_none():
    layout = SlabLayout({}, 64, {"image": 90 << 20, "boxes": 10 << 20})
    assert layout.ragged_slots == 2
    assert layout.size == 200 << 20 <= MAX_RAGGED_BYTES


def test_an_array_larger_than_the_limit_has_no_buffers():
    layout = SlabLayout(SLOTS, 4, {"volume": MAX_RAGGED_BYTES + 1})
    assert layout.size == SlabLayout(SLOTS, 4).size
    assert len(layout.ragged_buffers(memoryview(bytearray(layout.size)))["volume"]) == 0


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype="<f4").reshape(2, 3),
        np.arange(6, dtype=">i2").reshape(2, 3).T,
        np.arange(20)[::-3],
        np.zeros((0, 4), "<f8"),
        np.array(7.5),
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.array(["2026-01-02"], "<M8[D]"),
        np.arange(PAGE, dtype=np.uint8),
    ],
    ids=str,
)
def test_a_stored_array_is_read_back_unchanged(value):
    buffer = np.full(PAGE, 0xEE, np.uint8)
    array = store_ragged(value, buffer).array_in(buffer)
    assert (array.dtype, array.shape) == (value.dtype, value.shape)
    assert np.array_equal(array, value)
    assert np.shares_memory(array, buffer) == (value.nbytes > 0)
    assert np.all(buffer[value.nbytes :] == 0xEE)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(PAGE + 1, np.uint8),
        np.array([{"a": 1}]),
        np.zeros(2, [("x", "<f4"), ("y", "<f4")]),
        np.ma.masked_array([1, 2], [True, False]),
        np.float32(1),
        [1, 2, 3],
        "text",
        None,
    ],
    ids=["too large", "objects", "records", "masked", "number", "list", "text", "nothing"],
)
def test_a_value_that_is_not_a_plain_array_or_does_not_fit_is_not_stored(value):
    buffer = np.full(PAGE, 0xEE, np.uint8)
    assert store_ragged(value, buffer) is None
    assert np.all(buffer == 0xEE)


def test_a_reused_buffer_shows_only_the_new_array():
    buffer = np.zeros(PAGE, np.uint8)
    store_ragged(np.full(500, 7.0), buffer)
    assert store_ragged(np.array([[1, 2]]), buffer) == RaggedView("<i8", (1, 2))
    assert RaggedView("<i8", (1, 2)).array_in(buffer).tolist() == [[1, 2]]


def test_encoded_sizes_lie_behind_everything_else_for_the_arrays_that_have_some():
    layout = SlabLayout(SLOTS, 4, {"boxes": 100}, tuple(SLOTS)[:2])
    memory = memoryview(bytearray(2 * layout.size))
    sizes = layout.encoded_sizes(memory, layout.size)
    assert {name: (each.shape, each.dtype) for name, each in sizes.items()} == dict.fromkeys(
        tuple(SLOTS)[:2], ((4, ENCODED_SIZE_FIELDS), np.int32)
    )
    for number, each in enumerate(sizes.values()):
        each[...] = number + 1
    assert [int(each.min()) for each in sizes.values()] == [1, 2]
    assert not any(each.any() for each in layout.arrays(memory, layout.size).values())
    assert not layout.ragged_buffers(memory, layout.size)["boxes"].any()
    assert layout.filled_bytes == SlabLayout(SLOTS, 4).filled_bytes, "encoded sizes are not copied to the GPU"
