"""Delivery of complete batches, without an engine."""

import gc
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from penstock.core.contracts import BAD_SAMPLE, BatchRequest
from penstock.core.slab_layout import PAGE, SlabLayout, SlotSpec, store_ragged
from penstock.data.batch.delivery import SKIPPED, Delivery
from penstock.data.batch.slab_pool import SlabPool
from penstock.data.device.transfer import HostTransfer
from penstock.errors import DecodeError, PenstockError, SampleError
from penstock.options import ErrorOptions

LAYOUT = SlabLayout({"x": SlotSpec((2,), "<i4")}, batch_size=4)


@dataclass
class Batch:
    slab: int
    samples: list[int]
    extras: list[tuple[int, str, Any]] = field(default_factory=list)
    padding: int = 0

    @property
    def request(self):
        samples = np.array(self.samples, np.int64)
        return BatchRequest(0, samples, 0, rng_ids=1000 + samples, padding=self.padding)


class Names:
    marks_padding = True

    def assemble(self, values, samples):
        return {**values, "__key__": [f"k{sample}" for sample in samples.tolist()]}

    def location(self, sample, suffix=None):
        return "a.tar", f"k{sample}{suffix or ''}", 512 * sample + (256 if suffix else 0)


class DeliveryOfThreeSlabs:
    """A delivery over three slabs, each filled with ten times its number plus the slot."""

    def __init__(self, layout=LAYOUT, *, several_ranks=False, **errors):
        self.memory = bytearray(3 * layout.size)
        self.given_back = []
        self.slabs = SlabPool(memoryview(self.memory), 3, self.given_back.append)
        self.delivery = Delivery(
            layout, self.slabs, Names(), ErrorOptions(**errors), HostTransfer("numpy"), several_ranks=several_ranks
        )
        for slab in range(3):
            for array in layout.arrays(memoryview(self.memory), slab * layout.size).values():
                array[:] = 10 * slab + np.arange(4)[:, None]

    def __call__(self, *args, **settings):
        return self.delivery.deliver(self.delivery.send(Batch(*args, **settings)))


def bad(slot, reason="no JPEG"):
    return slot, BAD_SAMPLE, DecodeError(reason, stage="decode")


def test_a_batch_has_the_arrays_of_the_slab_and_the_keys():
    deliver = DeliveryOfThreeSlabs()
    batch = deliver(1, [5, 6, 7, 8])
    assert batch["x"][:, 0].tolist() == [10, 11, 12, 13]
    assert batch["__key__"] == ["k5", "k6", "k7", "k8"]
    assert np.shares_memory(batch["x"], np.frombuffer(deliver.memory, np.uint8))


def test_a_batch_smaller_than_its_slab_has_only_its_samples():
    assert DeliveryOfThreeSlabs()(0, [5, 6])["x"].shape == (2, 2)


def test_extras_are_delivered_as_lists_in_the_order_of_the_slots():
    batch = DeliveryOfThreeSlabs()(0, [5, 6], [(1, "note", "b"), (0, "note", "a")])
    assert batch["note"] == ["a", "b"]


def test_a_slab_is_given_back_when_its_batch_is_garbage():
    deliver = DeliveryOfThreeSlabs()
    batch = deliver(1, [5, 6, 7, 8])
    assert deliver.given_back == []
    del batch
    gc.collect()
    assert deliver.given_back == [1]


def test_the_last_slab_is_never_lent():
    deliver = DeliveryOfThreeSlabs()
    kept_batches = [deliver(slab, [5, 6, 7, 8]) for slab in range(3)]
    assert deliver.given_back == [2]
    deliver.memory[:] = bytes(len(deliver.memory))
    assert [batch["x"][0, 0] for batch in kept_batches] == [0, 0, 20]
    kept_batches.clear()
    gc.collect()
    assert sorted(deliver.given_back) == [0, 1, 2]
    kept = deliver(2, [5])
    assert deliver.given_back.count(2) == 1
    assert kept["x"].shape == (1, 2)


def test_the_slab_of_a_batch_without_arrays_is_given_back_at_once():
    deliver = DeliveryOfThreeSlabs(SlabLayout({}, 4))
    batch = deliver(1, [5], [(0, "note", "a")])
    assert (batch, deliver.given_back) == ({"note": ["a"], "__key__": ["k5"], "__padding__": [False]}, [1])


RAGGED = SlabLayout({"x": SlotSpec((2,), "<i4")}, 4, {"points": PAGE})


def store_points(deliver, slab, *slots):
    """Store an array of slot + 1 numbers in each slot's buffer; return the extras of the worker."""
    buffers = RAGGED.ragged_buffers(memoryview(deliver.memory), slab * RAGGED.size)["points"]
    return [(slot, "points", store_ragged(np.full(slot + 1, 100 * slab + slot), buffers[slot])) for slot in slots]


def test_arrays_without_a_fixed_shape_are_delivered_as_a_list_over_the_slab():
    deliver = DeliveryOfThreeSlabs(RAGGED)
    batch = deliver(1, [5, 6, 7], [*store_points(deliver, 1, 2, 0), (1, "points", np.zeros(9))])
    assert [points.tolist() for points in batch["points"]] == [[100], [0.0] * 9, [102] * 3]
    slabs = np.frombuffer(deliver.memory, np.uint8)
    assert [np.shares_memory(points, slabs) for points in batch["points"]] == [True, False, True]
    assert batch["x"][:, 0].tolist() == [10, 11, 12]


@pytest.mark.parametrize("layout", [RAGGED, SlabLayout({}, 4, {"points": PAGE})], ids=["with arrays", "alone"])
def test_one_array_without_a_fixed_shape_keeps_the_slab(layout):
    deliver = DeliveryOfThreeSlabs(RAGGED)
    deliver.delivery = Delivery(layout, deliver.slabs, Names(), ErrorOptions(), HostTransfer("numpy"))
    buffers = layout.ragged_buffers(memoryview(deliver.memory), layout.size)["points"]
    extras = [(slot, "points", store_ragged(np.full(3, slot), buffers[slot])) for slot in range(2)]
    kept = deliver(1, [5, 6], extras)["points"][1]
    gc.collect()
    assert (kept.tolist(), deliver.given_back) == ([1, 1, 1], [])
    del kept
    gc.collect()
    assert deliver.given_back == [1]


def test_arrays_without_a_fixed_shape_are_copied_where_the_slab_cannot_be_lent():
    deliver = DeliveryOfThreeSlabs(RAGGED)
    kept_batches = [deliver(slab, [5, 6, 7, 8], store_points(deliver, slab, 0, 1, 2, 3)) for slab in range(3)]
    assert deliver.given_back == [2]
    deliver.memory[:] = bytes(len(deliver.memory))
    assert [batch["points"][3].tolist() for batch in kept_batches] == [[0] * 4, [0] * 4, [203] * 4]


@pytest.mark.parametrize(
    ("on_error", "expected"), [("skip", [[100], [103] * 4]), ("replace", [[100], [103] * 4, [103] * 4, [103] * 4])]
)
def test_arrays_without_a_fixed_shape_are_copied_from_a_batch_with_bad_samples(on_error, expected):
    deliver = DeliveryOfThreeSlabs(RAGGED, on_error=on_error)
    batch = deliver(1, [5, 6, 7, 8], [bad(1), bad(2), *store_points(deliver, 1, 0, 1, 3)])
    assert deliver.given_back == [1]
    deliver.memory[:] = bytes(len(deliver.memory))
    assert [points.tolist() for points in batch["points"]] == expected


def test_a_spare_sample_with_an_array_without_a_fixed_shape_keeps_no_slab():
    deliver = DeliveryOfThreeSlabs(RAGGED, on_error="replace", max_bad_fraction=1)
    deliver(1, [5, 6, 7, 8], store_points(deliver, 1, 0, 1, 2, 3))
    gc.collect()
    assert deliver.given_back == [1]
    deliver.memory[:] = bytes(len(deliver.memory))
    assert [points.tolist() for points in deliver(2, [9, 10, 11], all_bad())["points"]] == [[103] * 4] * 3


def test_after_the_pool_is_closed_a_batch_stays_valid_and_its_slab_is_not_given_back():
    deliver = DeliveryOfThreeSlabs()
    batch = deliver(1, [5, 6, 7, 8])
    deliver.slabs.close()
    assert batch["x"][0, 0] == 10
    del batch
    gc.collect()
    assert deliver.given_back == []


def test_raise_names_the_first_bad_sample_and_gives_the_slab_back():
    deliver = DeliveryOfThreeSlabs(on_error="raise")
    with pytest.raises(DecodeError) as caught:
        deliver(1, [5, 6, 7, 8], [bad(2, "second"), bad(1, "first")])
    assert (caught.value.reason, caught.value.where()) == (
        "first",
        {"shard": "a.tar", "member": "k6", "offset": 3072, "stage": "decode"},
    )
    assert deliver.given_back == [1]


def test_the_error_of_a_part_has_its_full_name_and_its_own_offset():
    deliver = DeliveryOfThreeSlabs(on_error="raise")
    with pytest.raises(DecodeError) as caught:
        deliver(1, [5, 6], [(1, BAD_SAMPLE, DecodeError("cut short", member=".jpg", stage="decode"))])
    assert caught.value.where() == {"shard": "a.tar", "member": "k6.jpg", "offset": 3328, "stage": "decode"}


def test_skip_makes_the_batch_smaller():
    deliver = DeliveryOfThreeSlabs(on_error="skip")
    batch = deliver(1, [5, 6, 7, 8], [bad(0), bad(2), *((slot, "note", str(slot)) for slot in (1, 3))])
    assert batch["x"][:, 0].tolist() == [11, 13]
    assert (batch["note"], batch["__key__"]) == (["1", "3"], ["k6", "k8"])
    assert (deliver.delivery.delivered, deliver.delivery.bad, deliver.given_back) == (2, 2, [1])


def test_replace_delivers_the_next_good_sample_in_place_of_a_bad_one():
    deliver = DeliveryOfThreeSlabs(on_error="replace")
    batch = deliver(1, [5, 6, 7, 8], [bad(0), bad(3)])
    assert batch["x"][:, 0].tolist() == [11, 11, 12, 11]
    assert batch["__key__"] == ["k6", "k6", "k7", "k6"]
    assert (deliver.delivery.delivered, deliver.delivery.bad) == (2, 2)


def test_a_sample_that_replaces_a_bad_one_keeps_its_rng_id():
    class RecordingTransfer(HostTransfer):
        def send(self, batch):
            rng_ids.append(batch.rng_ids.tolist())
            return super().send(batch)

    rng_ids = []
    deliver = DeliveryOfThreeSlabs(on_error="replace", max_bad_fraction=1)
    deliver.delivery = Delivery(LAYOUT, deliver.slabs, Names(), ErrorOptions("replace", 1), RecordingTransfer("numpy"))
    deliver(1, [5, 6, 7, 8])
    deliver(2, [5, 6, 7], [bad(1)])
    deliver(0, [9, 10, 11], all_bad())
    assert rng_ids == [[1005, 1006, 1007, 1008], [1005, 1007, 1007], [1007] * 3]


def all_bad():
    return [bad(slot, f"reason {slot}") for slot in range(3)]


def test_replace_repeats_the_last_good_sample_if_a_batch_has_no_good_one():
    deliver = DeliveryOfThreeSlabs(on_error="replace", max_bad_fraction=1)
    deliver(1, [5, 6, 7, 8], [bad(3), *((slot, "note", str(slot)) for slot in range(3))])
    batch = deliver(2, [9, 10, 11], all_bad())
    assert batch["x"][:, 0].tolist() == [10, 10, 10]  # slot 3 of the batch before had itself been replaced by slot 0
    assert (batch["note"], batch["__key__"]) == (["0"] * 3, ["k5"] * 3)
    again = deliver(0, [12, 13, 14], all_bad())
    assert again["__key__"] == ["k5"] * 3
    assert (deliver.delivery.delivered, deliver.delivery.bad, deliver.given_back) == (3, 7, [1, 2, 0])


def test_samples_that_only_fill_a_batch_are_marked():
    deliver = DeliveryOfThreeSlabs(on_error="replace", max_bad_fraction=1)
    assert deliver(0, [5, 6, 7])["__padding__"].tolist() == [False] * 3
    assert deliver(1, [5, 6, 7], padding=1)["__padding__"].tolist() == [False, False, True]
    replaced = deliver(2, [5, 6, 7, 8], [bad(1)], padding=1)
    assert replaced["__key__"] == ["k5", "k7", "k7", "k8"]
    assert replaced["__padding__"].tolist() == [False, False, True, True]
    assert deliver(0, [9, 10, 11], all_bad())["__padding__"].tolist() == [True] * 3


def test_what_is_left_of_a_batch_keeps_its_marks():
    deliver = DeliveryOfThreeSlabs(on_error="skip", max_bad_fraction=1)
    assert deliver(1, [5, 6, 7], [bad(0)], padding=1)["__padding__"].tolist() == [False, True]


def test_a_spare_sample_keeps_no_slab():
    deliver = DeliveryOfThreeSlabs(on_error="replace")
    deliver(1, [5, 6, 7, 8])
    gc.collect()
    assert deliver.given_back == [1]


def test_on_one_rank_skip_leaves_out_a_batch_without_a_good_sample(caplog):
    deliver = DeliveryOfThreeSlabs(on_error="skip", max_bad_fraction=1)
    assert deliver(1, [5, 6, 7], all_bad()) is SKIPPED
    assert deliver(2, [8, 9, 10], all_bad()) is SKIPPED
    assert caplog.text.count("a batch has no good sample: it is left out") == 1
    assert (deliver.given_back, deliver.delivery.bad) == ([1, 2], 6)


def test_on_several_ranks_skip_repeats_a_good_sample_in_such_a_batch(caplog):
    deliver = DeliveryOfThreeSlabs(on_error="skip", max_bad_fraction=1, several_ranks=True)
    deliver(0, [1, 2, 3, 4])
    assert deliver(1, [5, 6, 7], all_bad())["__key__"] == ["k4"] * 3
    assert "this rank repeats a good sample" in caplog.text


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_without_a_good_sample_before_it_such_a_batch_is_an_error(on_error):
    deliver = DeliveryOfThreeSlabs(on_error=on_error, max_bad_fraction=1, several_ranks=True)
    with pytest.raises(SampleError, match=r"all 3 samples of a batch are bad.*the first: reason 0") as caught:
        deliver(1, [5, 6, 7], all_bad())
    assert caught.value.member == "k5"
    assert 1 in deliver.given_back


def test_a_good_sample_of_one_epoch_replaces_none_of_the_next():
    deliver = DeliveryOfThreeSlabs(on_error="replace", max_bad_fraction=1)
    deliver(0, [1, 2, 3, 4])
    deliver.delivery.begin_epoch()
    with pytest.raises(SampleError, match="all 3 samples"):
        deliver(1, [5, 6, 7], all_bad())


def test_an_exception_of_any_type_is_a_bad_sample():
    deliver = DeliveryOfThreeSlabs(on_error="raise")
    with pytest.raises(SampleError, match="boom") as caught:
        deliver(0, [5], [(0, BAD_SAMPLE, ValueError("boom"))])
    assert caught.value.member == "k5"


def test_the_file_of_bad_samples_lists_each_of_them(tmp_path):
    path = tmp_path / "bad.jsonl"
    deliver = DeliveryOfThreeSlabs(on_error="skip", bad_samples_path=str(path))
    deliver(0, [5, 6, 7, 8], [bad(3), bad(0, "cut short")])
    deliver(1, [9, 10], [bad(0)])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["member"], line["reason"]) for line in lines] == [
        ("k5", "cut short"),
        ("k8", "no JPEG"),
        ("k9", "no JPEG"),
    ]
    assert lines[0] == {"shard": "a.tar", "member": "k5", "offset": 2560, "stage": "decode", "reason": "cut short"}


def test_too_many_bad_samples_end_the_epoch_with_an_error_that_counts_them():
    deliver = DeliveryOfThreeSlabs(on_error="skip", max_bad_fraction=0.02)
    for number in range(24):
        deliver(0, list(range(4 * number, 4 * number + 4)), [bad(1)] if number < 2 else [])
    with pytest.raises(SampleError, match=r"3 of 100 samples are bad, more than the 2\.0% allowed") as caught:
        deliver(0, [96, 97, 98, 99], [bad(0)])
    assert (caught.value.member, "max_bad_fraction" in caught.value.advice) == ("k96", True)


def test_exactly_the_allowed_fraction_of_bad_samples_is_accepted():
    deliver = DeliveryOfThreeSlabs(on_error="skip", max_bad_fraction=0.02)
    for number in range(25):
        deliver(0, list(range(4 * number, 4 * number + 4)), [bad(1)] if number in (0, 24) else [])
    deliver.delivery.check_counts(100)
    assert (deliver.delivery.delivered, deliver.delivery.bad) == (98, 2)


def test_counts_that_do_not_add_up_are_an_error():
    deliver = DeliveryOfThreeSlabs()
    deliver(0, [5, 6])
    with pytest.raises(PenstockError, match="2 samples delivered and 0 bad are not the 3 requested"):
        deliver.delivery.check_counts(3)


def test_a_new_epoch_resets_the_counts():
    deliver = DeliveryOfThreeSlabs()
    deliver(0, [5, 6])
    deliver.delivery.begin_epoch()
    deliver.delivery.check_counts(0)
    assert deliver.delivery.delivered == 0
