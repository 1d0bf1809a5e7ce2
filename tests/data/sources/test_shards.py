"""What a batch will look like, judged by the first samples."""

import numpy as np

from penstock.core.slab_layout import PAGE, SlabLayout, SlotSpec
from penstock.data.fields import Array, Image, Json, Label
from penstock.data.fields.gpu_image import GpuDecodedImage
from penstock.data.sources.shards import SIZED_SAMPLES, infer_layout

FIELDS = {"picture": Image(".jpg"), "label": Label(".cls"), "meta": Json(".json"), "boxes": Array(".npy", ragged=True)}


def sample(**values):
    zero = np.array(0, np.int64)
    return {"picture": np.zeros((3, 10, 20), np.uint8), "label": zero, "meta": {}, "boxes": np.zeros((2, 4)), **values}


def look(*samples, fields=FIELDS):
    return infer_layout(iter(samples), fields, 8)


def test_what_has_one_shape_has_a_slot_and_what_has_many_has_half_as_much_room_again():
    assert look(sample()) == SlabLayout({"label": SlotSpec((), "<i8")}, 8, {"picture": 900, "boxes": 96})


def test_the_largest_of_the_first_few_samples_counts():
    few = [sample(boxes=np.zeros(size)) for size in (1, 9, 4, 2)]
    assert len(few) == SIZED_SAMPLES
    assert look(*few, sample(boxes=np.zeros(99))).ragged_bytes["boxes"] == 9 * 8 * 3 // 2


def test_a_first_array_that_is_empty_leaves_a_page():
    layout = look(sample(boxes=np.zeros((0, 4))))
    assert layout.ragged_buffers(memoryview(bytearray(layout.size)))["boxes"].shape == (8, PAGE)


def test_one_look_is_enough_where_everything_has_a_shape():
    samples = iter([sample(), sample()])
    assert infer_layout(samples, {"label": FIELDS["label"], "picture": Image(size=8)}, 8).ragged_bytes == {}
    assert len(list(samples)) == 1


def test_what_a_transform_adds_is_taken_to_have_one_shape_and_what_it_turns_into_something_else_has_none():
    layout = look(sample(extra=np.zeros(5, np.float32), picture="seen", meta=np.zeros(3)), sample(meta=[1, 2]))
    assert layout.slots == {"label": SlotSpec((), "<i8"), "extra": SlotSpec((5,), "<f4")}
    assert layout.ragged_bytes == {"boxes": 96, "meta": 36}


def test_a_picture_that_may_be_left_to_the_card_has_notes():
    fields = {"label": FIELDS["label"], "picture": GpuDecodedImage(Image(size=8, decode="gpu"))}
    assert look({"picture": np.zeros((3, 8, 8), np.uint8), "label": np.array(0)}, fields=fields).maybe_encoded == (
        "picture",
    )
