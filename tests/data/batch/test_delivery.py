"""From a complete batch to what the training loop gets, without an engine."""

import gc
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from penstock.core.contracts import BAD_SAMPLE, BatchRequest
from penstock.core.slab_layout import PAGE, SlabLayout, SlotSpec, store_ragged
from penstock.data.batch.delivery import Delivery
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

    @property
    def request(self):
        return BatchRequest(0, np.array(self.samples, np.int64), 0)


class Names:
    def assemble(self, values, samples):
        return {**values, "__key__": [f"k{sample}" for sample in samples.tolist()]}

    def location(self, sample, suffix=None):
        return "a.tar", f"k{sample}{suffix or ''}", 512 * sample + (256 if suffix else 0)


class Desk:
    """A delivery over three slabs, each filled with its own number."""

    def __init__(self, layout=LAYOUT, **errors):
        self.memory = bytearray(3 * layout.size)
        self.back = []
        self.slabs = SlabPool(memoryview(self.memory), 3, self.back.append)
        self.delivery = Delivery(layout, self.slabs, Names(), ErrorOptions(**errors), HostTransfer("numpy"))
        for slab in range(3):
            for array in layout.arrays(memoryview(self.memory), slab * layout.size).values():
                array[:] = 10 * slab + np.arange(4)[:, None]

    def __call__(self, *args):
        return self.delivery.deliver(self.delivery.send(Batch(*args)))


def bad(slot, reason="no JPEG"):
    return slot, BAD_SAMPLE, DecodeError(reason, stage="decode")


def test_a_batch_is_the_slab_with_its_keys():
    desk = Desk()
    batch = desk(1, [5, 6, 7, 8])
    assert batch["x"][:, 0].tolist() == [10, 11, 12, 13]
    assert batch["__key__"] == ["k5", "k6", "k7", "k8"]
    assert np.shares_memory(batch["x"], np.frombuffer(desk.memory, np.uint8))


def test_a_short_batch_has_only_its_samples():
    assert Desk()(0, [5, 6])["x"].shape == (2, 2)


def test_values_without_a_shape_come_as_lists_in_slot_order():
    batch = Desk()(0, [5, 6], [(1, "note", "b"), (0, "note", "a")])
    assert batch["note"] == ["a", "b"]


def test_a_slab_comes_back_when_its_batch_is_gone():
    desk = Desk()
    batch = desk(1, [5, 6, 7, 8])
    assert desk.back == []
    del batch
    gc.collect()
    assert desk.back == [1]


def test_the_last_slab_is_never_lent():
    desk = Desk()
    hoard = [desk(slab, [5, 6, 7, 8]) for slab in range(3)]
    assert desk.back == [2]
    desk.memory[:] = bytes(len(desk.memory))
    assert [batch["x"][0, 0] for batch in hoard] == [0, 0, 20]
    hoard.clear()
    gc.collect()
    assert sorted(desk.back) == [0, 1, 2]
    kept = desk(2, [5])
    assert desk.back.count(2) == 1
    assert kept["x"].shape == (1, 2)


def test_a_batch_of_lists_only_gives_its_slab_back_at_once():
    desk = Desk(SlabLayout({}, 4))
    batch = desk(1, [5], [(0, "note", "a")])
    assert (batch, desk.back) == ({"note": ["a"], "__key__": ["k5"]}, [1])


RAGGED = SlabLayout({"x": SlotSpec((2,), "<i4")}, 4, {"points": PAGE})


def ragged(desk, slab, *slots):
    """What a worker answers about arrays of 1, 2, 3… numbers, in the slots' rooms."""
    rooms = RAGGED.ragged_buffers(memoryview(desk.memory), slab * RAGGED.size)["points"]
    return [(slot, "points", store_ragged(np.full(slot + 1, 100 * slab + slot), rooms[slot])) for slot in slots]


def test_arrays_of_any_shape_are_delivered_as_a_list_over_the_slab():
    desk = Desk(RAGGED)
    batch = desk(1, [5, 6, 7], [*ragged(desk, 1, 2, 0), (1, "points", np.zeros(9))])
    assert [points.tolist() for points in batch["points"]] == [[100], [0.0] * 9, [102] * 3]
    slabs = np.frombuffer(desk.memory, np.uint8)
    assert [np.shares_memory(points, slabs) for points in batch["points"]] == [True, False, True]
    assert batch["x"][:, 0].tolist() == [10, 11, 12]


@pytest.mark.parametrize("layout", [RAGGED, SlabLayout({}, 4, {"points": PAGE})], ids=["with arrays", "alone"])
def test_one_of_them_is_enough_to_keep_the_slab(layout):
    desk = Desk(RAGGED)
    desk.delivery = Delivery(layout, desk.slabs, Names(), ErrorOptions(), HostTransfer("numpy"))
    rooms = layout.ragged_buffers(memoryview(desk.memory), layout.size)["points"]
    kept = desk(1, [5, 6], [(slot, "points", store_ragged(np.full(3, slot), rooms[slot])) for slot in range(2)])[
        "points"
    ][1]
    gc.collect()
    assert (kept.tolist(), desk.back) == ([1, 1, 1], [])
    del kept
    gc.collect()
    assert desk.back == [1]


def test_they_are_copied_where_the_slab_cannot_be_lent():
    desk = Desk(RAGGED)
    hoard = [desk(slab, [5, 6, 7, 8], ragged(desk, slab, 0, 1, 2, 3)) for slab in range(3)]
    assert desk.back == [2]
    desk.memory[:] = bytes(len(desk.memory))
    assert [batch["points"][3].tolist() for batch in hoard] == [[0] * 4, [0] * 4, [203] * 4]


@pytest.mark.parametrize(
    ("on_error", "expected"), [("skip", [[100], [103] * 4]), ("replace", [[100], [103] * 4, [103] * 4, [103] * 4])]
)
def test_they_are_copied_from_a_batch_with_bad_samples(on_error, expected):
    desk = Desk(RAGGED, on_error=on_error)
    batch = desk(1, [5, 6, 7, 8], [bad(1), bad(2), *ragged(desk, 1, 0, 1, 3)])
    assert desk.back == [1]
    desk.memory[:] = bytes(len(desk.memory))
    assert [points.tolist() for points in batch["points"]] == expected


def test_a_spare_sample_with_an_array_of_any_shape_holds_no_slab():
    desk = Desk(RAGGED, on_error="replace", max_bad_fraction=1)
    desk(1, [5, 6, 7, 8], ragged(desk, 1, 0, 1, 2, 3))
    gc.collect()
    assert desk.back == [1]
    desk.memory[:] = bytes(len(desk.memory))
    assert [points.tolist() for points in desk(2, [9, 10, 11], all_bad())["points"]] == [[103] * 4] * 3


def test_after_closing_a_batch_stays_and_its_slab_comes_back_to_nobody():
    desk = Desk()
    batch = desk(1, [5, 6, 7, 8])
    desk.slabs.close()
    assert batch["x"][0, 0] == 10
    del batch
    gc.collect()
    assert desk.back == []


def test_raise_names_the_first_bad_sample_and_gives_the_slab_back():
    desk = Desk(on_error="raise")
    with pytest.raises(DecodeError) as caught:
        desk(1, [5, 6, 7, 8], [bad(2, "second"), bad(1, "first")])
    assert (caught.value.reason, caught.value.where()) == (
        "first",
        {"shard": "a.tar", "member": "k6", "offset": 3072, "stage": "decode"},
    )
    assert desk.back == [1]


def test_a_bad_part_is_named_by_its_whole_name_and_its_own_offset():
    desk = Desk(on_error="raise")
    with pytest.raises(DecodeError) as caught:
        desk(1, [5, 6], [(1, BAD_SAMPLE, DecodeError("cut short", member=".jpg", stage="decode"))])
    assert caught.value.where() == {"shard": "a.tar", "member": "k6.jpg", "offset": 3328, "stage": "decode"}


def test_skip_makes_the_batch_smaller():
    desk = Desk(on_error="skip")
    batch = desk(1, [5, 6, 7, 8], [bad(0), bad(2), *((slot, "note", str(slot)) for slot in (1, 3))])
    assert batch["x"][:, 0].tolist() == [11, 13]
    assert (batch["note"], batch["__key__"]) == (["1", "3"], ["k6", "k8"])
    assert (desk.delivery.delivered, desk.delivery.bad, desk.back) == (2, 2, [1])


def test_replace_puts_the_next_good_sample_there():
    desk = Desk(on_error="replace")
    batch = desk(1, [5, 6, 7, 8], [bad(0), bad(3)])
    assert batch["x"][:, 0].tolist() == [11, 11, 12, 11]
    assert batch["__key__"] == ["k6", "k6", "k7", "k6"]
    assert (desk.delivery.delivered, desk.delivery.bad) == (2, 2)


def all_bad():
    return [bad(slot, f"reason {slot}") for slot in range(3)]


def test_replace_repeats_the_last_good_sample_when_a_batch_has_none_of_its_own():
    desk = Desk(on_error="replace", max_bad_fraction=1)
    desk(1, [5, 6, 7, 8], [bad(3), *((slot, "note", str(slot)) for slot in range(3))])
    batch = desk(2, [9, 10, 11], all_bad())
    assert batch["x"][:, 0].tolist() == [10, 10, 10]  # slot 3 of the batch before had itself been replaced by slot 0
    assert (batch["note"], batch["__key__"]) == (["0"] * 3, ["k5"] * 3)
    again = desk(0, [12, 13, 14], all_bad())
    assert again["__key__"] == ["k5"] * 3
    assert (desk.delivery.delivered, desk.delivery.bad, desk.back) == (3, 7, [1, 2, 0])


def test_a_spare_sample_holds_no_slab():
    desk = Desk(on_error="replace")
    desk(1, [5, 6, 7, 8])
    gc.collect()
    assert desk.back == [1]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_batch_without_a_good_sample_is_an_error_and_never_an_empty_batch(on_error):
    desk = Desk(on_error=on_error, max_bad_fraction=1)
    if on_error == "skip":
        desk(0, [1, 2, 3, 4])
    with pytest.raises(SampleError, match=r"all 3 samples of a batch are bad.*the first: reason 0") as caught:
        desk(1, [5, 6, 7], all_bad())
    assert (caught.value.member, "replace" in caught.value.advice) == ("k5", True)
    assert 1 in desk.back


def test_what_was_good_in_one_pass_is_no_spare_for_the_next():
    desk = Desk(on_error="replace", max_bad_fraction=1)
    desk(0, [1, 2, 3, 4])
    desk.delivery.begin_epoch()
    with pytest.raises(SampleError, match="all 3 samples"):
        desk(1, [5, 6, 7], all_bad())


def test_an_error_of_unknown_kind_is_a_bad_sample_too():
    desk = Desk(on_error="raise")
    with pytest.raises(SampleError, match="boom") as caught:
        desk(0, [5], [(0, BAD_SAMPLE, ValueError("boom"))])
    assert caught.value.member == "k5"


def test_the_ledger_lists_every_bad_sample(tmp_path):
    ledger = tmp_path / "bad.jsonl"
    desk = Desk(on_error="skip", bad_samples_path=str(ledger))
    desk(0, [5, 6, 7, 8], [bad(3), bad(0, "cut short")])
    desk(1, [9, 10], [bad(0)])
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [(line["member"], line["reason"]) for line in lines] == [
        ("k5", "cut short"),
        ("k8", "no JPEG"),
        ("k9", "no JPEG"),
    ]
    assert lines[0] == {"shard": "a.tar", "member": "k5", "offset": 2560, "stage": "decode", "reason": "cut short"}


def test_too_many_bad_samples_end_the_epoch_with_the_figures():
    desk = Desk(on_error="skip", max_bad_fraction=0.02)
    for at in range(24):
        desk(0, [4 * at, 4 * at + 1, 4 * at + 2, 4 * at + 3], [bad(1)] if at < 2 else [])
    with pytest.raises(SampleError, match=r"3 of 100 samples are bad, more than the 2\.0% allowed") as caught:
        desk(0, [96, 97, 98, 99], [bad(0)])
    assert (caught.value.member, "max_bad_fraction" in caught.value.advice) == ("k96", True)


def test_exactly_the_allowed_share_is_let_through():
    desk = Desk(on_error="skip", max_bad_fraction=0.02)
    for at in range(25):
        desk(0, [4 * at, 4 * at + 1, 4 * at + 2, 4 * at + 3], [bad(1)] if at in (0, 24) else [])
    desk.delivery.check_counts(100)
    assert (desk.delivery.delivered, desk.delivery.bad) == (98, 2)


def test_books_that_do_not_balance_are_an_error():
    desk = Desk()
    desk(0, [5, 6])
    with pytest.raises(PenstockError, match="2 samples delivered and 0 bad are not the 3 requested"):
        desk.delivery.check_counts(3)


def test_a_new_pass_opens_new_books():
    desk = Desk()
    desk(0, [5, 6])
    desk.delivery.begin_epoch()
    desk.delivery.check_counts(0)
    assert desk.delivery.delivered == 0
