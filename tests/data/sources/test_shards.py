"""The layout of a batch, inferred from the first samples."""

import numpy as np

from penstock.core.slab_layout import PAGE, SlabLayout, SlotSpec
from penstock.data.fields import Array, Image, Json, Label
from penstock.data.fields.gpu_image import GpuDecodedImage
from penstock.data.sources.shards import SIZED_SAMPLES, infer_layout

FIELDS = {"image": Image(".jpg"), "label": Label(".cls"), "meta": Json(".json"), "boxes": Array(".npy", ragged=True)}


def sample(**values):
    zero = np.array(0, np.int64)
    return {"image": np.zeros((3, 10, 20), np.uint8), "label": zero, "meta": {}, "boxes": np.zeros((2, 4)), **values}


def layout_of(*samples, fields=FIELDS):
    return infer_layout(iter(samples), fields, 8)


def test_fields_of_one_shape_have_slots_and_others_buffers_of_one_and_a_half_times_their_size():
    assert layout_of(sample()) == SlabLayout({"label": SlotSpec((), "<i8")}, 8, {"image": 900, "boxes": 96})


def test_the_largest_of_the_first_few_samples_decides_the_buffer():
    few = [sample(boxes=np.zeros(size)) for size in (1, 9, 4, 2)]
    assert len(few) == SIZED_SAMPLES
    assert layout_of(*few, sample(boxes=np.zeros(99))).ragged_bytes["boxes"] == 9 * 8 * 3 // 2


def test_an_empty_first_array_still_gets_a_page():
    layout = layout_of(sample(boxes=np.zeros((0, 4))))
    assert layout.ragged_buffers(memoryview(bytearray(layout.size)))["boxes"].shape == (8, PAGE)


def test_only_one_sample_is_decoded_where_all_fields_have_one_shape():
    samples = iter([sample(), sample()])
    assert infer_layout(samples, {"label": FIELDS["label"], "image": Image(size=8)}, 8).ragged_bytes == {}
    assert len(list(samples)) == 1


def test_an_array_that_a_transform_adds_has_a_slot_and_a_field_that_it_changes_to_another_type_has_none():
    layout = layout_of(sample(extra=np.zeros(5, np.float32), image="seen", meta=np.zeros(3)), sample(meta=[1, 2]))
    assert layout.slots == {"label": SlotSpec((), "<i8"), "extra": SlotSpec((5,), "<f4")}
    assert layout.ragged_bytes == {"boxes": 96, "meta": 36}


def test_an_image_that_the_gpu_may_decode_has_encoded_sizes():
    fields = {"label": FIELDS["label"], "image": GpuDecodedImage(Image(size=8, decode="gpu"))}
    first = {"image": np.zeros((3, 8, 8), np.uint8), "label": np.array(0)}
    assert layout_of(first, fields=fields).maybe_encoded == ("image",)
