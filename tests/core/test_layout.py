"""The arithmetic of slabs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.layout import PAGE, SlabLayout, Slot

SLOTS = {"image": Slot((3, 5, 7), "|u1"), "label": Slot((), "<i8"), "features": Slot((11,), "<f2")}


@pytest.mark.parametrize(
    ("shape", "dtype", "size_bytes"), [((3, 224, 224), "uint8", 150528), ((), "<i8", 8), ((0, 4), "<f4", 0)]
)
def test_a_slot_knows_its_bytes(shape, dtype, size_bytes):
    assert Slot(shape, dtype).size == size_bytes


def test_a_slot_of_more_than_two_gigabytes_does_not_overflow():
    assert Slot((1 << 16, 1 << 16), "<f8").size == 1 << 35


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


def test_a_slab_without_arrays_still_has_a_page():
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
    slots = {f"field{number}": Slot(*spec) for number, spec in enumerate(specs)}
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
