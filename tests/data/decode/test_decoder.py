"""The worker program for shards."""

import io
import mmap
import pickle
import sys
from collections import Counter

import deflate
import numpy as np
import pytest
import simplejpeg

from penstock.core.contracts import BAD_SAMPLE, Task, TaskResult
from penstock.core.slab_layout import PAGE, RaggedView, SlabLayout, SlotSpec
from penstock.data.decode import decoder as decoder_module
from penstock.data.decode.decoder import Decoder
from penstock.data.decode.rng import sample_rng
from penstock.data.fields import Array, Image, Json, Label, Raw
from penstock.data.fields.gpu_image import GpuDecodedImage
from penstock.data.read.block_layout import NO_CRC
from penstock.data.read.sample_index import MISSING
from penstock.engine.worker_main import encode_result
from penstock.errors import DecodeError, SampleError
from penstock.shards.codecs import arrays as arrays_module
from penstock.shards.codecs.arrays import encode_npy
from penstock.testing.images import make_image

LAYOUT = SlabLayout({"x": SlotSpec((3,), "<f4"), "label": SlotSpec((), "<i8")}, 8)
FIELDS = {"x": Array(".npy"), "label": Label((".cls", ".id")), "meta": Json(".json")}


class Arena:
    """The bytes of parts one after the other, and the rows that describe them."""

    def __init__(self):
        self.memory = bytearray()
        self.rows = []

    def add(self, slot, sample, *parts, choices=None, crcs=None):
        row = [slot, sample]
        for i, part in enumerate(parts):
            row += [len(self.memory), len(part), choices[i] if choices else 0, crcs[i] if crcs else NO_CRC]
            self.memory += part
        self.rows.append(row)
        return self


def add_good(arena, slot, sample):
    array = np.full(3, sample, np.float32)
    return arena.add(slot, sample, encode_npy(array), str(sample).encode(), b'{"n": %d}' % sample)


def run(decoder, arena, epoch=0, slabs=None, slab_start=0, rows=None):
    """Run a task with the arena's rows; return the extras and the arrays of the slab."""
    slabs = slabs if slabs is not None else bytearray(decoder.layout.size)
    task = Task(0, slab_start, epoch, np.array(arena.rows if rows is None else rows, np.int64))
    extras = decoder.start(memoryview(arena.memory), memoryview(slabs))(task)
    return extras, decoder.layout.arrays(memoryview(slabs), slab_start)


def jitter(values, rng):
    return {"x": values["x"] + rng.random(3, dtype=np.float32), "label": values["label"], "draw": float(rng.random())}


def test_fields_of_fixed_shape_go_into_their_slots_and_others_into_the_extras():
    arena = add_good(add_good(Arena(), 5, 50), 2, 20)
    extras, arrays = run(Decoder(FIELDS, LAYOUT, seed=0), arena)
    assert extras == [(5, "meta", {"n": 50}), (2, "meta", {"n": 20})]
    assert arrays["label"].tolist() == [0, 0, 20, 0, 0, 50, 0, 0]
    assert arrays["x"][[2, 5]].tolist() == [[20.0] * 3, [50.0] * 3]


def test_only_the_slab_of_the_task_is_written():
    slabs = bytearray(3 * LAYOUT.size)
    run(Decoder(FIELDS, LAYOUT, seed=0), add_good(Arena(), 0, 9), slabs=slabs, slab_start=LAYOUT.size)
    assert any(slabs[LAYOUT.size : 2 * LAYOUT.size])
    assert not any(slabs[: LAYOUT.size])
    assert not any(slabs[2 * LAYOUT.size :])


def test_the_suffix_that_a_sample_has_is_passed_to_the_field():
    class SuffixField(Raw):
        def decode_value(self, suffix, data, sample):
            return suffix

    arena = Arena().add(0, 0, b"a", choices=[1]).add(1, 1, b"b", choices=[0])
    extras, _ = run(Decoder({"part": SuffixField((".a", ".b"))}, SlabLayout({}, 8), seed=0), arena)
    assert extras == [(0, "part", ".b"), (1, "part", ".a")]


def test_a_bad_sample_does_not_stop_the_other_samples_of_its_task():
    arena = add_good(Arena(), 0, 1).add(1, 2, encode_npy(np.zeros(3, np.float32)), b"cat", b"{}")
    extras, arrays = run(Decoder(FIELDS, LAYOUT, seed=0), add_good(arena, 2, 3))
    (failure,) = [(slot, error) for slot, name, error in extras if name == BAD_SAMPLE]
    assert failure[0] == 1
    assert isinstance(failure[1], DecodeError)
    assert (failure[1].member, failure[1].stage) == (".cls", "decode")
    assert arrays["label"][[0, 2]].tolist() == [1, 3]


def test_an_array_of_another_shape_is_a_bad_sample_that_names_both_shapes():
    arena = Arena().add(0, 0, encode_npy(np.zeros(4, np.float32)), b"1", b"{}")
    ((_, name, error),), _ = run(Decoder(FIELDS, LAYOUT, seed=0), arena)
    assert name == BAD_SAMPLE
    assert error.reason == "array is float32[4] where float32[3] is expected"


def test_an_unforeseen_exception_of_a_field_is_a_bad_sample_that_names_it():
    class Broken(Raw):
        def decode_value(self, suffix, data, sample):
            raise ZeroDivisionError("oh")

    ((slot, name, error),), _ = run(Decoder({"a": Broken(".a")}, SlabLayout({}, 8), seed=0), Arena().add(3, 0, b"a"))
    assert (slot, name, type(error), error.reason) == (3, BAD_SAMPLE, SampleError, "ZeroDivisionError: oh")
    assert (error.member, error.stage) == (".a", "decode")


@pytest.mark.parametrize("transform", [None, lambda values, rng: values])
def test_a_part_with_a_wrong_crc_is_named_and_not_decoded(transform):
    parts = encode_npy(np.full(3, 4, np.float32)), b"4", b'{"n": 4}'
    crcs = [deflate.crc32(part) for part in parts]
    arena = Arena().add(0, 0, *parts, crcs=crcs).add(1, 1, *parts, crcs=[crcs[0], NO_CRC, crcs[2] ^ 1])
    extras, arrays = run(Decoder(FIELDS, LAYOUT, 0, transform), arena)
    assert extras[0] == (0, "meta", {"n": 4})
    ((slot, _, error),) = extras[1:]
    assert (slot, type(error), error.reason) == (1, DecodeError, "CRC32 does not match the index")
    assert (error.member, error.stage) == (".json", "read")
    assert arrays["label"][0] == 4


def test_an_array_without_a_fixed_shape_does_not_share_memory_with_the_arena():
    arena = Arena().add(0, 0, encode_npy(np.arange(4)))
    ((_, _, value),), _ = run(Decoder({"x": Array(".npy", ragged=True)}, SlabLayout({}, 8), seed=0), arena)
    arena.memory[:] = bytes(len(arena.memory))
    assert value.tolist() == [0, 1, 2, 3]


# -- arrays without a fixed shape ------------------------------------------------------------------------------------

RAGGED = {"x": Array(".npy", ragged=True), "meta": Json(".json")}
RAGGED_LAYOUT = SlabLayout({}, 8, {"x": PAGE})


def add_points(arena, slot, count):
    return arena.add(slot, slot, encode_npy(np.full((count, 4), count, np.float32)), b'{"n": %d}' % count)


def run_ragged(arena, transform=None, slabs=None):
    """Run a task; return the extras and the ragged buffers of the slab."""
    slabs = slabs if slabs is not None else bytearray(RAGGED_LAYOUT.size)
    extras, _ = run(Decoder(RAGGED, RAGGED_LAYOUT, 0, transform), arena, slabs=slabs)
    return extras, RAGGED_LAYOUT.ragged_buffers(memoryview(slabs))["x"]


@pytest.mark.parametrize("transform", [None, lambda values, rng: values])
def test_an_array_without_a_fixed_shape_goes_into_its_buffer(transform):
    arena = add_points(add_points(Arena(), 5, 3), 2, 200)
    extras, buffers = run_ragged(arena, transform)
    assert extras == [
        (5, "x", RaggedView("<f4", (3, 4))),
        (5, "meta", {"n": 3}),
        (2, "x", RaggedView("<f4", (200, 4))),
        (2, "meta", {"n": 200}),
    ]
    assert np.all(extras[0][2].array_in(buffers[5]) == 3)
    assert np.all(extras[2][2].array_in(buffers[2]) == 200)
    assert not np.any(buffers[[0, 1, 3, 4, 6, 7]])


@pytest.mark.parametrize("transform", [None, lambda values, rng: values])
def test_an_array_larger_than_its_buffer_goes_into_the_extras_and_leaves_the_buffer_alone(transform):
    extras, buffers = run_ragged(add_points(Arena(), 1, 257), transform)
    assert np.array_equal(extras[0][2], np.full((257, 4), 257, np.float32))
    assert not np.any(buffers)


def test_a_transform_may_replace_an_array_by_another_type():
    def words(values, rng):
        return {"x": "none" if values["meta"]["n"] == 1 else values["x"][:1], "more": values["x"]}

    extras, _ = run_ragged(add_points(add_points(Arena(), 0, 1), 1, 2), words)
    assert [value for _, name, value in extras if name == "x"] == ["none", RaggedView("<f4", (1, 4))]
    assert [len(value) for _, name, value in extras if name == "more"] == [
        1,
        2,
    ]  # it has no buffer, so the extras have the array


def test_slots_without_a_buffer_put_their_arrays_into_the_extras():
    few = SlabLayout({}, 8, {"x": 100 << 20})
    assert few.ragged_slots == 2
    arena = add_points(add_points(Arena(), 1, 3), 2, 3)
    extras, _ = run(Decoder(RAGGED, few, 0), arena, slabs=mmap.mmap(-1, few.size))
    assert [type(value) for _, name, value in extras if name == "x"] == [RaggedView, np.ndarray]


def test_the_result_of_a_task_is_short_if_its_arrays_are_in_their_buffers():
    arena = Arena()
    for slot in range(8):
        add_points(arena, slot, 249 + slot)
    fields, layout = {"x": RAGGED["x"]}, RAGGED_LAYOUT
    rows = [row[:6] for row in arena.rows]
    extras, _ = run(Decoder(fields, layout, 0), arena, rows=rows)
    assert len(encode_result(TaskResult(0, extras, 0.0, 0.0))) < 60 * len(rows)


# -- transforms ------------------------------------------------------------------------------------------------------


def transformed(transform, arena, **task):
    return run(Decoder(FIELDS, LAYOUT, 7, transform), arena, **task)


def test_a_transform_gets_the_sample_and_its_result_is_stored():
    def double(values, rng):
        return {"x": values["x"] * 2, "label": values["label"], "note": f"n is {values['meta']['n']}"}

    extras, arrays = transformed(double, add_good(Arena(), 4, 5))
    assert extras == [(4, "note", "n is 5")]
    assert arrays["x"][4].tolist() == [10.0] * 3


def test_a_transform_may_change_arrays_in_place_without_changing_the_arena():
    def in_place(values, rng):
        values["x"] += 1
        return values

    arena = add_good(Arena(), 0, 5)
    before = bytes(arena.memory)
    _, arrays = transformed(in_place, arena)
    assert arrays["x"][0].tolist() == [6.0] * 3
    assert bytes(arena.memory) == before


def test_a_samples_draws_do_not_depend_on_its_slot_or_the_other_samples():
    together = add_good(add_good(add_good(Arena(), 0, 11), 1, 22), 2, 33)
    extras, arrays = transformed(jitter, together, epoch=4)
    draws = {slot: value for slot, _, value in extras}
    for sample, slot in ((11, 0), (22, 1), (33, 2)):
        ((_, _, alone),), found = transformed(jitter, add_good(Arena(), 6, sample), epoch=4)
        assert alone == draws[slot]
        assert np.array_equal(found["x"][6], arrays["x"][slot])
    again, _ = transformed(jitter, together, epoch=4, rows=together.rows[::-1])
    assert {slot: value for slot, _, value in again} == draws


def test_draws_differ_by_sample_epoch_and_seed():
    draws = {sample_rng(seed, epoch, sample).random() for seed in (0, 1) for epoch in range(5) for sample in range(9)}
    assert len(draws) == 90


def test_a_decoder_can_be_pickled():
    decoder = Decoder(FIELDS, LAYOUT, 7, abs)
    assert pickle.loads(pickle.dumps(decoder)) == decoder


def test_an_exception_in_a_transform_is_a_bad_sample():
    def refuse_two(values, rng):
        if values["label"] == 2:
            raise RuntimeError("not twos")
        return values

    extras, arrays = transformed(refuse_two, add_good(add_good(add_good(Arena(), 0, 1), 1, 2), 2, 3))
    ((slot, error),) = [(slot, error) for slot, name, error in extras if name == BAD_SAMPLE]
    assert slot == 1
    assert (type(error), error.reason) == (SampleError, "RuntimeError: not twos")
    assert (error.member, error.stage) == (None, "transform")
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
def test_a_transform_that_returns_another_shape_or_dtype_is_a_bad_sample_that_names_both(value, found):
    ((_, name, error),), _ = transformed(lambda values, rng: {**values, "x": value}, add_good(Arena(), 0, 1))
    assert name == BAD_SAMPLE
    assert error.reason == f"transform gave 'x' as {found} where float32[3] is expected"
    assert error.stage == "transform"


def test_a_transform_that_leaves_a_field_out_is_a_bad_sample():
    ((_, name, error),), _ = transformed(lambda values, rng: {"x": values["x"]}, add_good(Arena(), 0, 1))
    assert name == BAD_SAMPLE
    assert error.reason == "transform gave no 'label'"


def test_a_transform_that_returns_no_dict_is_a_bad_sample():
    ((_, name, error),), _ = transformed(lambda values, rng: None, add_good(Arena(), 0, 1))
    assert name == BAD_SAMPLE
    assert (error.reason, error.stage) == ("transform gave NoneType, not a dict", "transform")


def test_a_transform_that_returns_a_value_that_is_not_an_array_is_a_bad_sample():
    ((_, name, error),), _ = transformed(lambda values, rng: {**values, "x": [[1], [2, 3]]}, add_good(Arena(), 0, 1))
    assert name == BAD_SAMPLE
    assert (type(error), error.stage) == (SampleError, "transform")


def test_a_jpeg_left_to_the_gpu_is_stored_in_the_slot_with_its_sizes():
    field = GpuDecodedImage(Image(".jpg", size=(48, 64), quality="exact", decode="gpu"))
    decoder = Decoder(
        {"image": field}, SlabLayout({"image": SlotSpec((3, 48, 64), "u1")}, 4, maybe_encoded=("image",)), seed=0
    )
    slabs = bytearray(decoder.layout.size)
    jpeg = simplejpeg.encode_jpeg(make_image(90, 120, 1))
    extras, _ = run(decoder, Arena().add(2, 0, jpeg), slabs=slabs)
    sizes = decoder.layout.encoded_sizes(memoryview(slabs))["image"]
    assert extras == []
    assert sizes.tolist() == [[0] * 8, [0] * 8, [len(jpeg), 90, 120, 0, 0, 90, 120, 0], [0] * 8]
    field.gpu_fraction.value = 0.0
    run(decoder, Arena().add(2, 1, jpeg), slabs=slabs)
    assert not sizes.any(), "the slot holds pixels now"


def test_a_slot_of_a_missing_image_does_not_keep_the_sizes_of_the_jpeg_before():
    image = Image(".jpg", size=(48, 64), quality="exact", decode="gpu", optional=True, fill=9)
    layout = SlabLayout({"image": SlotSpec((3, 48, 64), "u1")}, 4, maybe_encoded=("image",))
    decoder = Decoder({"image": GpuDecodedImage(image)}, layout, seed=0)
    slabs = bytearray(layout.size)
    run(decoder, Arena().add(2, 0, simplejpeg.encode_jpeg(make_image(90, 120, 1))), slabs=slabs)
    sizes = layout.encoded_sizes(memoryview(slabs))["image"]
    assert sizes.any()
    _, arrays = run(decoder, Arena().add(2, 1, b"", choices=[MISSING]), slabs=slabs)
    assert not sizes.any()
    assert (arrays["image"][2] == 9).all()


# -- the cost of small samples ------------------------------------------------------------


def npz_of(**arrays):
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def test_an_npz_is_found_opened_and_checked_once_for_all_its_arrays(monkeypatch):
    counts = Counter()

    def counted(module, name):
        original = getattr(module, name)

        def call(*arguments):
            counts[name] += 1
            return original(*arguments)

        monkeypatch.setattr(module, name, call)

    counted(arrays_module, "inspect_zip")
    counted(decoder_module, "check_crc")
    fields = {"a": Array(".npz", key="a"), "b": Array(".npz", key="b"), "c": Array(".npz", key="c", ragged=True)}
    layout = SlabLayout({"a": SlotSpec((3,), "<f4"), "b": SlotSpec((), "<i8")}, 8)
    arena = Arena()
    for slot in range(2):
        part = npz_of(a=np.full(3, slot, np.float32), b=np.int64(slot), c=np.arange(slot))
        arena.add(slot, slot, part, crcs=[deflate.crc32(part)])
    rows = [[*row, *row[2:], *row[2:]] for row in arena.rows]
    extras, arrays = run(Decoder(fields, layout, seed=0), arena, rows=rows)
    assert arrays["a"][1].tolist() == [1, 1, 1]
    assert arrays["b"][:2].tolist() == [0, 1]
    assert [(slot, name, value.tolist()) for slot, name, value in extras] == [(0, "c", []), (1, "c", [0])]
    assert counts == {"inspect_zip": 2, "check_crc": 2}
    counts.clear()
    run(Decoder(fields, layout, 0, transform=lambda values, rng: values), arena, rows=rows)
    assert counts == {"inspect_zip": 2, "check_crc": 2}


def test_a_small_sample_takes_few_calls():
    """At 50 to 100 ns each, calls are what small samples cost besides decoding: this one took 226."""
    fields = {
        "image": Image(".jpg", size=(256, 128), fit="stretch"),
        "a": Array(".npz", key="a"),
        "b": Array(".npz", key="b"),
    }
    layout = SlabLayout(
        {"image": SlotSpec((3, 256, 128), "|u1"), "a": SlotSpec((64,), "<f4"), "b": SlotSpec((8, 8), "|u1")}, 40
    )
    image = simplejpeg.encode_jpeg(make_image(256, 128, 1))
    part = npz_of(a=np.ones(64, np.float32), b=np.ones((8, 8), np.uint8))
    arena = Arena()
    for slot in range(40):
        arena.add(slot, slot, image, part)
    rows = [[*row, *row[6:]] for row in arena.rows]
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    decoder, slabs = Decoder(fields, layout, seed=0), bytearray(layout.size)
    run(decoder, arena, slabs=slabs, rows=rows)  # what is kept for later samples is made here
    task = Task(0, 0, 0, np.array(rows, np.int64))
    program = decoder.start(memoryview(arena.memory), memoryview(slabs))
    sys.setprofile(count)
    try:
        extras = program(task)
    finally:
        sys.setprofile(None)
    assert not extras
    assert calls / len(rows) < 150
