"""The loader end to end: what is delivered, in which order, over which memory."""

import gc
import sys
import tarfile

import numpy as np
import pytest
import torch
from tests.support.loader_helpers import keys_of

import penstock
from penstock.errors import PenstockError, SettingError, ShardError
from penstock.runtime import engine_size
from penstock.testing import IMAGENET, REID, SA1B, make_shards, tar_bytes

SAMPLES = 30
SIZE = (26, 13)
FIELDS = {
    "image": penstock.Image(".jpg", size=SIZE, fit="stretch", layout="HWC"),
    "id": penstock.Label(".json", key="identity"),
    "meta": penstock.Json(".json"),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=3, scale=0.1)


@pytest.fixture
def loader(make_loader, shards):
    """Makes loaders over the shards."""
    return lambda fields=FIELDS, batch_size=8, **settings: make_loader(shards, fields, batch_size, **settings)


def contents(batches):
    """Everything that was delivered, as plain values."""
    return [(b["__key__"], b["image"].numpy().tobytes(), b["id"].tolist(), b["meta"]) for b in batches]


def members(shards):
    found = {}
    for shard in shards:
        with tarfile.open(shard) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    return found


# -- what is delivered -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_has_every_sample_once(loader, shards, shuffle):
    keys = keys_of(loader(shuffle=shuffle))
    assert len(keys) == SAMPLES
    assert set(keys) == {name.removesuffix(".jpg") for name in members(shards) if name.endswith(".jpg")}


def test_without_shuffle_the_order_is_that_of_the_shards(loader, shards):
    assert keys_of(loader()) == [name.removesuffix(".jpg") for name in members(shards) if name.endswith(".jpg")]


def test_every_key_comes_with_its_own_content(loader, shards):
    stored = members(shards)
    checked = 0
    for batch in loader(shuffle=True):
        for key, pixels, identity, meta in zip(
            batch["__key__"], batch["image"], batch["id"], batch["meta"], strict=True
        ):
            assert meta["identity"] == identity == int(key.split("_")[0])
            expected = FIELDS["image"].decode_value(".jpg", memoryview(stored[key + ".jpg"]))
            assert np.array_equal(pixels.numpy(), expected)
            checked += 1
    assert checked == SAMPLES


def test_batches_are_dicts_of_tensors_and_lists(loader):
    batch = next(iter(loader()))
    assert (batch["image"].shape, batch["image"].dtype) == ((8, *SIZE, 3), torch.uint8)
    assert (batch["id"].shape, batch["id"].dtype) == ((8,), torch.int64)
    assert all(isinstance(batch[name], list) for name in ("meta", "__key__"))


def test_arrays_of_an_npz_lie_beside_the_image(tmp_path):
    shards = make_shards(tmp_path, SA1B, samples=4, scale=0.05)
    fields = {
        "image": penstock.Image(".jpg", size=32),
        "features": penstock.Array("_features.npz", key="features"),
        "edge": penstock.Array("_features.npz", key="edge"),
    }
    loader = penstock.Loader(shards, fields, 4, engine=penstock.EngineOptions(executor="thread"))
    (batch,) = loader
    loader.close()
    stored = members(shards)
    for row, key in enumerate(batch["__key__"]):
        data = memoryview(stored[key + "_features.npz"])
        for name in ("features", "edge"):
            assert np.array_equal(batch[name][row].numpy(), fields[name].decode_value("_features.npz", data))


def test_fields_without_one_shape_come_as_lists(tmp_path):
    shards = make_shards(tmp_path, IMAGENET, samples=5, scale=0.1)
    fields = {"image": penstock.Image(".jpg"), "text": penstock.Text(".cls"), "raw": penstock.Raw(".cls")}
    with_lists = penstock.Loader(shards, fields, 5, engine=penstock.EngineOptions(executor="thread"))
    (batch,) = with_lists
    with_lists.close()
    assert {image.shape[0] for image in batch["image"]} == {3}
    assert len({image.shape for image in batch["image"]}) > 1
    assert batch["text"] == [raw.decode() for raw in batch["raw"]] == list("01234")


def test_device_numpy_delivers_arrays(loader):
    batch = next(iter(loader(device="numpy")))
    assert type(batch["image"]) is np.ndarray
    assert batch["image"].shape == (8, *SIZE, 3)


def test_another_device_gets_tensors_there(loader):
    assert [batch["image"].device.type for batch in loader(device="meta")] == ["meta"] * 4


# -- the order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("executor", "workers"), [("thread", 1), ("thread", 3), ("process", 1), ("process", 2)])
def test_order_and_bytes_do_not_depend_on_who_does_the_work(loader, executor, workers):
    asked = {"shuffle": True, "seed": 5}
    assert contents(loader(executor=executor, num_workers=workers, **asked)) == contents(loader(**asked))


def test_epochs_differ_and_come_again_with_the_same_seed(loader):
    one, two = loader(shuffle=True, seed=1), loader(shuffle=True, seed=1)
    first, second = keys_of(one), keys_of(one)
    assert first != second
    assert sorted(first) == sorted(second)
    assert [keys_of(two), keys_of(two)] == [first, second]
    assert keys_of(loader(shuffle=True, seed=2)) != first


def test_each_pass_is_the_next_epoch(loader):
    passes = loader(shuffle=True)
    assert [(passes.epoch, len(keys_of(passes)), passes.epoch) for _ in range(2)] == [(0, 30, 1), (1, 30, 2)]


def test_a_pass_that_was_left_is_followed_by_the_next_epoch(loader):
    left, whole = loader(shuffle=True), loader(shuffle=True)
    next(iter(left))
    keys_of(whole)
    assert keys_of(left) == keys_of(whole)


def test_set_epoch_chooses_the_next_pass(loader):
    chosen, passed = loader(shuffle=True), loader(shuffle=True)
    epochs = [keys_of(passed) for _ in range(3)]
    for epoch in (2, 0, 0, 1):
        chosen.set_epoch(epoch)
        chosen.set_epoch(epoch)
        assert keys_of(chosen) == epochs[epoch]


def test_set_epoch_after_a_pass_was_left_starts_that_epoch_again(loader):
    repeated = loader(shuffle=True)
    first = []
    for _ in range(3):
        repeated.set_epoch(0)
        for batch in repeated:
            first.append(batch["__key__"])
            break
    assert first[0] == first[1] == first[2]


def test_set_epoch_during_a_pass_takes_effect_after_it(loader):
    busy, passed = loader(shuffle=True), loader(shuffle=True)
    epochs = [keys_of(passed) for _ in range(4)]
    keys = []
    for batch in busy:
        keys += batch["__key__"]
        busy.set_epoch(0)  # where it is: changes nothing
    assert (keys, busy.epoch) == (epochs[0], 1)
    for _ in busy:
        busy.set_epoch(3)
    assert keys_of(busy) == epochs[3]


def test_an_epoch_below_0_is_refused(loader):
    with pytest.raises(SettingError, match="below 0"):
        loader().set_epoch(-1)


def test_a_second_pass_ends_the_first_with_a_word(loader):
    both = loader()
    first = iter(both)
    next(first)
    second = iter(both)
    keys = next(second)["__key__"]
    with pytest.raises(PenstockError, match="another iteration"):
        next(first)
    assert len(keys + keys_of(second)) == SAMPLES


# -- how many --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [
        (8, False, [8, 8, 8, 6]),
        (8, True, [8, 8, 8]),
        (10, True, [10, 10, 10]),
        (1, False, [1] * 30),
        (64, False, [30]),
        (64, True, []),
    ],
)
def test_len_is_the_number_of_batches(loader, batch_size, drop_last, sizes):
    cut = loader(batch_size=batch_size, drop_last=drop_last)
    assert [len(batch["__key__"]) for batch in cut] == sizes
    assert len(cut) == len(sizes)
    assert (cut.batch_size, cut.drop_last) == (batch_size, drop_last)


def test_max_samples_takes_the_first_of_the_order(loader):
    short = loader(shuffle=True, max_samples=13)
    assert keys_of(short) == keys_of(loader(shuffle=True))[:13]
    assert len(short) == 2
    assert len(keys_of(loader(max_samples=1000))) == SAMPLES


# -- memory ----------------------------------------------------------------------------------------------------


def test_tensors_lie_in_the_slab_itself(loader):
    direct = loader()
    batch = next(passing := iter(direct))
    slabs = np.frombuffer(direct._engine.slabs.view, np.uint8)
    assert np.shares_memory(batch["image"].numpy(), slabs)
    assert np.shares_memory(batch["id"].numpy(), slabs)
    del slabs
    passing.close()


@pytest.mark.parametrize(("device", "executor"), [("cpu", "thread"), ("numpy", "thread"), ("cpu", "process")])
def test_keeping_every_batch_of_an_epoch_neither_waits_nor_changes_them(loader, device, executor, monkeypatch):
    keeping = loader(shuffle=True, batch_size=2, device=device, executor=executor)
    monkeypatch.setattr(engine_size, "MAX_SLABS", 8)
    kept, when_new = [], []
    for batch in keeping:
        kept.append(batch)
        when_new.append(np.asarray(batch["image"]).tobytes())
    assert len(kept) == 15 > keeping._engine.plan.slabs
    assert [np.asarray(batch["image"]).tobytes() for batch in kept] == when_new
    assert sorted(keys_of(kept)) == sorted(keys_of(loader()))


def test_keeping_a_view_of_each_batch_is_enough_to_keep_it(loader):
    rows, when_new = [], []
    for batch in loader(shuffle=True, batch_size=2, device="numpy"):
        rows.append(np.asarray(batch["image"])[1:])
        when_new.append(rows[-1].tobytes())
        del batch
    assert [row.tobytes() for row in rows] == when_new


def test_slabs_come_back_after_a_hoard_is_dropped(loader):
    again = loader(batch_size=2)
    hoard = list(again)
    hoard.clear()
    gc.collect()
    batch = next(passing := iter(again))
    slabs = np.frombuffer(again._engine.slabs.view, np.uint8)
    assert np.shares_memory(batch["image"].numpy(), slabs)
    del slabs
    passing.close()


def test_a_batch_outlives_its_loader(loader):
    expected = contents([next(iter(loader()))])
    passing = loader()
    batch = next(iter(passing))
    passing.close()
    gc.collect()
    assert contents([batch]) == expected


def test_too_small_a_budget_is_refused_with_the_amount_that_is_needed(loader):
    with pytest.raises(SettingError, match=r"budget of 1 MiB is too small.* make \d+ MiB") as caught:
        next(iter(loader(memory_bytes=1 << 20)))
    needed = int(str(caught.value).split("make ")[1].split(" MiB")[0])
    assert len(keys_of(loader(memory_bytes=needed << 20))) == SAMPLES


# -- transforms ------------------------------------------------------------------------------------------------

TRANSFORMS = """
def noisy(sample, rng):
    sample["dice"] = rng.integers(1 << 60)
    sample["image"] = sample["image"][:4, :4].astype("float32") / 255
    sample["words"] = [str(sample["meta"]["camera"])]
    del sample["meta"]
    return sample

def wrong(sample, rng):
    cut = 1 if sample["id"] != 2 else 0
    return {"image": sample["image"][cut:]}
"""


@pytest.fixture
def transforms(tmp_path, monkeypatch):
    """A module that worker processes can import."""
    (tmp_path / "penstock_test_transforms.py").write_text(TRANSFORMS)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("penstock_test_transforms")
    del sys.modules["penstock_test_transforms"]


@pytest.mark.parametrize(("executor", "workers"), [("thread", 3), ("process", 2)])
def test_a_transform_may_change_add_and_remove(loader, transforms, executor, workers):
    batches = list(loader(transform=transforms.noisy, executor=executor, num_workers=workers))
    assert set(batches[0]) == {"image", "id", "dice", "words", "__key__"}
    assert (batches[0]["image"].shape, batches[0]["image"].dtype) == ((8, 4, 4, 3), torch.float32)
    words = [word for batch in batches for word in batch["words"]]
    assert words == [[key.split("_c")[1][0]] for key in keys_of(batches)]


def test_a_transforms_dice_follow_the_sample_and_the_epoch(loader, transforms):
    def throws(passing):
        return {key: int(dice) for b in passing for key, dice in zip(b["__key__"], b["dice"], strict=True)}

    one, three = (loader(transform=transforms.noisy, shuffle=True, num_workers=workers) for workers in (1, 3))
    first, second = throws(one), throws(one)
    assert [throws(three), throws(three)] == [first, second]
    assert len({*first.values(), *second.values()}) == 2 * SAMPLES
    assert throws(loader(transform=transforms.noisy)) == first  # whatever the order
    assert throws(loader(transform=transforms.noisy, seed=1)) != first


def test_a_transform_that_changes_the_shape_is_told_what_was_expected(loader, transforms):
    with pytest.raises(PenstockError, match=r"transform gave 'image' as uint8\[25, 13, 3\] where .*\[26, 13, 3\]"):
        keys_of(loader(transform=transforms.wrong))


def test_a_batch_transform_gets_the_delivered_batch(loader):
    means = list(loader(batch_transform=lambda batch: (batch["__key__"], batch["image"].float().mean())))
    assert [len(keys) for keys, _ in means] == [8, 8, 8, 6]
    assert all(isinstance(mean, torch.Tensor) for _, mean in means)


def test_a_batch_whose_transform_failed_was_not_delivered(loader):
    def refuse(batch):
        raise ZeroDivisionError

    failing = loader(batch_transform=refuse)
    with pytest.raises(ZeroDivisionError):
        next(iter(failing))
    assert failing.state_dict()["position"] == 0


# -- the rest --------------------------------------------------------------------------------------------------


def test_repr_tells_where_it_is_and_what_runs(loader):
    told = loader()
    assert repr(told) == "<Loader: 3 shards, batches of 8; epoch 0, 0 of 30 samples; idle>"
    passing = iter(told)
    next(passing)
    assert repr(told) == "<Loader: 3 shards, batches of 8; epoch 0, 8 of 30 samples; 2 workers (thread)>"
    passing.close()
    assert repr(told).endswith("epoch 0, 8 of 30 samples; idle>")


def test_a_closed_loader_can_be_used_again(loader):
    twice = loader()
    first = keys_of(twice)
    twice.close()
    twice.close()
    assert keys_of(twice) == first


def test_a_loader_closed_during_a_pass_says_so(loader):
    closed = loader()
    passing = iter(closed)
    next(passing)
    closed.close()
    with pytest.raises(PenstockError, match="closed"):
        next(passing)


def test_no_fields_and_wrong_fields_are_refused(loader):
    with pytest.raises(SettingError, match="needs fields"):
        loader(fields={})
    with pytest.raises(PenstockError, match=r"\.webp"):
        loader(fields={"image": penstock.Raw(".webp")})


@pytest.mark.parametrize("wrong", [{"max_samples": 0}, {"lanes": 0}, {"block_bytes": 0}, {"num_workers": -1}])
def test_a_setting_that_cannot_be_used_is_named(loader, wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        loader(**wrong)


def test_shards_without_a_whole_sample_are_refused(tmp_path):
    path = tmp_path / "orphans.tar"
    path.write_bytes(tar_bytes([("a.jpg", b"x"), ("b.json", b"{}")]))
    with pytest.raises(ShardError, match="no whole sample"):
        penstock.Loader(path, FIELDS, 2, on_error="skip")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_refused_before_anything_starts(loader):
    with pytest.raises(SettingError, match="there is no cuda:1: torch sees no CUDA device"):
        next(iter(loader(device="cuda:1")))
