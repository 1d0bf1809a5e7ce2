"""What workers do with a row."""

import pickle

import numpy as np
import pytest

from penstock.core.layout import SlabLayout, Slot
from penstock.core.work import BAD, Task
from penstock.errors import DecodeError, SampleError
from penstock.flow.decode import Decoder
from penstock.flow.fields import Array, Json, Label, Raw
from penstock.shards.codecs.arrays import encode_npy

LAYOUT = SlabLayout({"x": Slot((3,), "<f4"), "label": Slot((), "<i8")}, 8)
FIELDS = {"x": Array(".npy"), "label": Label((".cls", ".id")), "meta": Json(".json")}


class Arena:
    """Parts one after the other, and the rows that point at them."""

    def __init__(self):
        self.memory = bytearray()
        self.rows = []

    def add(self, slot, sample, *parts, choices=None):
        row = [slot, sample]
        for part, choice in zip(parts, choices or [0] * len(parts), strict=True):
            row += [len(self.memory), len(part), choice]
            self.memory += part
        self.rows.append(row)
        return self


def good(arena, slot, sample):
    array = np.full(3, sample, np.float32)
    return arena.add(slot, sample, encode_npy(array), str(sample).encode(), b'{"n": %d}' % sample)


def run(decoder, arena, epoch=0, slabs=None, slab_start=0, rows=None):
    """Whatever fell beside the slab, and the arrays."""
    slabs = slabs if slabs is not None else bytearray(decoder.layout.size)
    task = Task(0, slab_start, epoch, np.array(arena.rows if rows is None else rows, np.int64))
    extras = decoder.start(memoryview(arena.memory), memoryview(slabs))(task)
    return extras, decoder.layout.arrays(memoryview(slabs), slab_start)


def jitter(values, rng):
    return {"x": values["x"] + rng.random(3, dtype=np.float32), "label": values["label"], "dice": float(rng.random())}


def test_fixed_fields_go_into_their_slots_and_the_others_beside():
    arena = good(good(Arena(), 5, 50), 2, 20)
    extras, arrays = run(Decoder(FIELDS, LAYOUT, seed=0), arena)
    assert extras == [(5, "meta", {"n": 50}), (2, "meta", {"n": 20})]
    assert arrays["label"].tolist() == [0, 0, 20, 0, 0, 50, 0, 0]
    assert arrays["x"][[2, 5]].tolist() == [[20.0] * 3, [50.0] * 3]


def test_only_the_tasks_own_slab_is_written():
    slabs = bytearray(3 * LAYOUT.size)
    run(Decoder(FIELDS, LAYOUT, seed=0), good(Arena(), 0, 9), slabs=slabs, slab_start=LAYOUT.size)
    assert any(slabs[LAYOUT.size : 2 * LAYOUT.size])
    assert not any(slabs[: LAYOUT.size])
    assert not any(slabs[2 * LAYOUT.size :])


def test_the_alternative_that_a_sample_has_is_the_one_that_is_decoded():
    class Told(Raw):
        def decode(self, suffix, data):
            return suffix

    arena = Arena().add(0, 0, b"a", choices=[1]).add(1, 1, b"b", choices=[0])
    extras, _ = run(Decoder({"part": Told((".a", ".b"))}, SlabLayout({}, 8), seed=0), arena)
    assert extras == [(0, "part", ".b"), (1, "part", ".a")]


def test_a_bad_sample_does_not_keep_the_others_of_its_task():
    arena = good(Arena(), 0, 1).add(1, 2, encode_npy(np.zeros(3, np.float32)), b"cat", b"{}")
    extras, arrays = run(Decoder(FIELDS, LAYOUT, seed=0), good(arena, 2, 3))
    (failure,) = [(slot, error) for slot, name, error in extras if name == BAD]
    assert failure[0] == 1
    assert isinstance(failure[1], DecodeError)
    assert arrays["label"][[0, 2]].tolist() == [1, 3]


def test_an_array_of_another_shape_is_a_bad_sample_with_expected_and_found():
    arena = Arena().add(0, 0, encode_npy(np.zeros(4, np.float32)), b"1", b"{}")
    ((_, name, error),), _ = run(Decoder(FIELDS, LAYOUT, seed=0), arena)
    assert name == BAD
    assert error.reason == "array is float32[4] where float32[3] is expected"


def test_an_unforeseen_failure_of_a_decoder_is_a_bad_sample_that_names_it():
    class Broken(Raw):
        def decode(self, suffix, data):
            raise ZeroDivisionError("oh")

    ((slot, name, error),), _ = run(Decoder({"a": Broken(".a")}, SlabLayout({}, 8), seed=0), Arena().add(3, 0, b"a"))
    assert (slot, name, type(error), error.reason) == (3, BAD, SampleError, "ZeroDivisionError: oh")


def test_a_ragged_array_outlives_the_arena():
    arena = Arena().add(0, 0, encode_npy(np.arange(4)))
    ((_, _, value),), _ = run(Decoder({"x": Array(".npy", ragged=True)}, SlabLayout({}, 8), seed=0), arena)
    arena.memory[:] = bytes(len(arena.memory))
    assert value.tolist() == [0, 1, 2, 3]


# -- transforms ------------------------------------------------------------------------------------------------------


def transformed(transform, arena, **task):
    return run(Decoder(FIELDS, LAYOUT, 7, transform), arena, **task)


def test_a_transform_sees_the_sample_and_decides_what_is_delivered():
    def double(values, rng):
        return {"x": values["x"] * 2, "label": values["label"], "note": f"n is {values['meta']['n']}"}

    extras, arrays = transformed(double, good(Arena(), 4, 5))
    assert extras == [(4, "note", "n is 5")]
    assert arrays["x"][4].tolist() == [10.0] * 3


def test_a_transform_may_write_into_what_it_is_given_and_the_arena_is_left_alone():
    def in_place(values, rng):
        values["x"] += 1
        return values

    arena = good(Arena(), 0, 5)
    before = bytes(arena.memory)
    _, arrays = transformed(in_place, arena)
    assert arrays["x"][0].tolist() == [6.0] * 3
    assert bytes(arena.memory) == before


def test_a_samples_dice_do_not_depend_on_slot_order_or_company():
    together = good(good(good(Arena(), 0, 11), 1, 22), 2, 33)
    extras, arrays = transformed(jitter, together, epoch=4)
    dice = {slot: value for slot, _, value in extras}
    for sample, slot in ((11, 0), (22, 1), (33, 2)):
        ((_, _, alone),), found = transformed(jitter, good(Arena(), 6, sample), epoch=4)
        assert alone == dice[slot]
        assert np.array_equal(found["x"][6], arrays["x"][slot])
    again, _ = transformed(jitter, together, epoch=4, rows=together.rows[::-1])
    assert {slot: value for slot, _, value in again} == dice


def test_dice_differ_by_sample_epoch_and_seed():
    decoders = [Decoder(FIELDS, LAYOUT, seed, jitter) for seed in (0, 1)]
    thrown = {decoder.rng(epoch, sample).random() for decoder in decoders for epoch in range(5) for sample in range(9)}
    assert len(thrown) == 90


def test_a_decoder_is_the_same_after_its_way_to_a_worker():
    decoder = pickle.loads(pickle.dumps(Decoder(FIELDS, LAYOUT, 7, abs)))
    assert decoder.rng(1, 2).random() == Decoder(FIELDS, LAYOUT, 7, abs).rng(1, 2).random()


def test_a_raising_transform_is_a_bad_sample_and_not_a_crash():
    def picky(values, rng):
        if values["label"] == 2:
            raise RuntimeError("not twos")
        return values

    extras, arrays = transformed(picky, good(good(good(Arena(), 0, 1), 1, 2), 2, 3))
    ((slot, error),) = [(slot, error) for slot, name, error in extras if name == BAD]
    assert slot == 1
    assert (type(error), error.reason) == (SampleError, "RuntimeError: not twos")
    assert arrays["label"][[0, 2]].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.zeros(4, np.float32), "float32[4]"),
        (np.zeros(3, np.float64), "float64[3]"),
        (np.float32(0), "float32[]"),
        ([0.0, 0.0, 0.0], "float64[3]"),
    ],
)
def test_a_transform_that_gives_another_shape_or_dtype_is_told_expected_and_found(value, found):
    ((_, name, error),), _ = transformed(lambda values, rng: {**values, "x": value}, good(Arena(), 0, 1))
    assert name == BAD
    assert error.reason == f"transform gave 'x' as {found} where float32[3] is expected"
    assert error.stage == "transform"


def test_a_transform_that_leaves_a_field_out_does_not_deliver_another_samples():
    ((_, name, error),), _ = transformed(lambda values, rng: {"x": values["x"]}, good(Arena(), 0, 1))
    assert name == BAD
    assert error.reason == "transform gave no 'label'"


def test_a_transform_that_gives_no_dict_is_a_bad_sample():
    ((_, name, error),), _ = transformed(lambda values, rng: None, good(Arena(), 0, 1))
    assert name == BAD
    assert isinstance(error, SampleError)
