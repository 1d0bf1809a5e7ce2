"""The loader end to end: the content of batches, their order, and the memory they are in."""

import gc
import sys
import tarfile

import numpy as np
import pytest
import torch
from tests.support.loader_helpers import keys_of

import penstock
from penstock.data.fields.base import SampleContext
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
    """Make loaders over the shards."""
    return lambda fields=FIELDS, batch_size=8, **settings: make_loader(shards, fields, batch_size, **settings)


def contents(batches):
    """Return the content of batches as plain values."""
    return [(b["__key__"], b["image"].numpy().tobytes(), b["id"].tolist(), b["meta"]) for b in batches]


def members(shards):
    contents = {}
    for shard in shards:
        with tarfile.open(shard) as tar:
            contents |= {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    return contents


# -- content of batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_has_every_sample_once(loader, shards, shuffle):
    keys = keys_of(loader(shuffle=shuffle))
    assert len(keys) == SAMPLES
    assert set(keys) == {name.removesuffix(".jpg") for name in members(shards) if name.endswith(".jpg")}


def test_without_shuffle_the_order_is_that_of_the_shards(loader, shards):
    assert keys_of(loader()) == [name.removesuffix(".jpg") for name in members(shards) if name.endswith(".jpg")]


def test_every_key_is_delivered_with_its_own_content(loader, shards):
    stored = members(shards)
    checked = 0
    for batch in loader(shuffle=True):
        for key, pixels, identity, meta in zip(
            batch["__key__"], batch["image"], batch["id"], batch["meta"], strict=True
        ):
            assert meta["identity"] == identity == int(key.split("_")[0])
            expected = FIELDS["image"].decode_value(".jpg", memoryview(stored[key + ".jpg"]), SampleContext())
            assert np.array_equal(pixels.numpy(), expected)
            checked += 1
    assert checked == SAMPLES


def test_batches_are_dicts_of_tensors_and_lists(loader):
    batch = next(iter(loader()))
    assert (batch["image"].shape, batch["image"].dtype) == ((8, *SIZE, 3), torch.uint8)
    assert (batch["id"].shape, batch["id"].dtype) == ((8,), torch.int64)
    assert all(isinstance(batch[name], list) for name in ("meta", "__key__"))


def test_arrays_of_an_npz_are_delivered_with_the_image(tmp_path):
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
            assert np.array_equal(
                batch[name][row].numpy(), fields[name].decode_value("_features.npz", data, SampleContext())
            )


def test_fields_without_a_fixed_shape_are_lists(tmp_path):
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


def test_tensors_are_delivered_on_the_given_device(loader):
    assert [batch["image"].device.type for batch in loader(device="meta")] == ["meta"] * 4


# -- order and epochs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("executor", "workers"), [("thread", 1), ("thread", 3), ("process", 1), ("process", 2)])
def test_order_and_bytes_do_not_depend_on_the_workers(loader, executor, workers):
    settings = {"shuffle": True, "seed": 5}
    assert contents(loader(executor=executor, num_workers=workers, **settings)) == contents(loader(**settings))


def test_epochs_differ_and_are_repeated_with_the_same_seed(loader):
    one, two = loader(shuffle=True, seed=1), loader(shuffle=True, seed=1)
    first, second = keys_of(one), keys_of(one)
    assert first != second
    assert sorted(first) == sorted(second)
    assert [keys_of(two), keys_of(two)] == [first, second]
    assert keys_of(loader(shuffle=True, seed=2)) != first


def test_each_iteration_is_the_next_epoch(loader):
    each = loader(shuffle=True)
    assert [(each.epoch, len(keys_of(each)), each.epoch) for _ in range(2)] == [(0, 30, 1), (1, 30, 2)]


def test_an_epoch_that_was_left_early_is_followed_by_the_next_one(loader):
    left, whole = loader(shuffle=True), loader(shuffle=True)
    next(iter(left))
    keys_of(whole)
    assert keys_of(left) == keys_of(whole)


def test_set_epoch_selects_the_next_epoch(loader):
    chosen, reference = loader(shuffle=True), loader(shuffle=True)
    epochs = [keys_of(reference) for _ in range(3)]
    for epoch in (2, 0, 0, 1):
        chosen.set_epoch(epoch)
        chosen.set_epoch(epoch)
        assert keys_of(chosen) == epochs[epoch]


def test_set_epoch_after_leaving_an_epoch_starts_it_again(loader):
    repeated = loader(shuffle=True)
    first = []
    for _ in range(3):
        repeated.set_epoch(0)
        for batch in repeated:
            first.append(batch["__key__"])
            break
    assert first[0] == first[1] == first[2]


def test_set_epoch_during_an_epoch_takes_effect_after_it(loader):
    busy, reference = loader(shuffle=True), loader(shuffle=True)
    epochs = [keys_of(reference) for _ in range(4)]
    keys = []
    for batch in busy:
        keys += batch["__key__"]
        busy.set_epoch(0)  # the current epoch: changes nothing
    assert (keys, busy.epoch) == (epochs[0], 1)
    for _ in busy:
        busy.set_epoch(3)
    assert keys_of(busy) == epochs[3]


def test_an_epoch_below_0_is_refused(loader):
    with pytest.raises(SettingError, match="below 0"):
        loader().set_epoch(-1)


def test_a_second_iteration_ends_the_first_one_with_an_error(loader):
    both = loader()
    first = iter(both)
    next(first)
    second = iter(both)
    keys = next(second)["__key__"]
    with pytest.raises(PenstockError, match="another iteration"):
        next(first)
    assert len(keys + keys_of(second)) == SAMPLES


# -- number of batches -----------------------------------------------------------------------------------------


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
    sized = loader(batch_size=batch_size, drop_last=drop_last)
    assert [len(batch["__key__"]) for batch in sized] == sizes
    assert len(sized) == len(sizes)
    assert (sized.batch_size, sized.drop_last) == (batch_size, drop_last)


def test_max_samples_keeps_the_first_samples_of_the_order(loader):
    short = loader(shuffle=True, max_samples=13)
    assert keys_of(short) == keys_of(loader(shuffle=True))[:13]
    assert len(short) == 2
    assert len(keys_of(loader(max_samples=1000))) == SAMPLES


# -- memory ----------------------------------------------------------------------------------------------------


def test_tensors_use_the_memory_of_the_slab(loader):
    direct = loader()
    batch = next(iterator := iter(direct))
    slabs = np.frombuffer(direct._engine.slabs.view, np.uint8)
    assert np.shares_memory(batch["image"].numpy(), slabs)
    assert np.shares_memory(batch["id"].numpy(), slabs)
    del slabs
    iterator.close()


@pytest.mark.parametrize(("device", "executor"), [("cpu", "thread"), ("numpy", "thread"), ("cpu", "process")])
def test_all_batches_of_an_epoch_can_be_kept_and_stay_unchanged(loader, device, executor, monkeypatch):
    keeping = loader(shuffle=True, batch_size=2, device=device, executor=executor)
    monkeypatch.setattr(engine_size, "MAX_SLABS", 8)
    kept, when_new = [], []
    for batch in keeping:
        kept.append(batch)
        when_new.append(np.asarray(batch["image"]).tobytes())
    assert len(kept) == 15 > keeping._engine.plan.slabs
    assert [np.asarray(batch["image"]).tobytes() for batch in kept] == when_new
    assert sorted(keys_of(kept)) == sorted(keys_of(loader()))


def test_a_view_keeps_its_batch_unchanged(loader):
    rows, when_new = [], []
    for batch in loader(shuffle=True, batch_size=2, device="numpy"):
        rows.append(np.asarray(batch["image"])[1:])
        when_new.append(rows[-1].tobytes())
        del batch
    assert [row.tobytes() for row in rows] == when_new


def test_slabs_are_reused_after_all_batches_were_dropped(loader):
    again = loader(batch_size=2)
    batches = list(again)
    batches.clear()
    gc.collect()
    batch = next(iterator := iter(again))
    slabs = np.frombuffer(again._engine.slabs.view, np.uint8)
    assert np.shares_memory(batch["image"].numpy(), slabs)
    del slabs
    iterator.close()


def test_a_batch_stays_valid_after_its_loader_is_closed(loader):
    expected = contents([next(iter(loader()))])
    closed = loader()
    batch = next(iter(closed))
    closed.close()
    gc.collect()
    assert contents([batch]) == expected


def test_a_memory_budget_that_is_too_small_is_refused_with_the_needed_amount(loader):
    with pytest.raises(SettingError, match=r"budget of 1 MiB is too small.* make \d+ MiB") as caught:
        next(iter(loader(memory_bytes=1 << 20)))
    needed = int(str(caught.value).split("make ")[1].split(" MiB")[0])
    assert len(keys_of(loader(memory_bytes=needed << 20))) == SAMPLES


# -- transforms ------------------------------------------------------------------------------------------------

TRANSFORMS = """
def noisy(sample, rng):
    sample["random"] = rng.integers(1 << 60)
    sample["image"] = sample["image"][:4, :4].astype("float32") / 255
    sample["words"] = [str(sample["meta"]["camera"])]
    del sample["meta"]
    return sample

def wrong(sample, rng):
    rows = 1 if sample["id"] != 2 else 0
    return {"image": sample["image"][rows:]}
"""


@pytest.fixture
def transforms(tmp_path, monkeypatch):
    """A module that worker processes can import."""
    (tmp_path / "penstock_test_transforms.py").write_text(TRANSFORMS)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("penstock_test_transforms")
    del sys.modules["penstock_test_transforms"]


@pytest.mark.parametrize(("executor", "workers"), [("thread", 3), ("process", 2)])
def test_a_transform_may_change_add_and_remove_values(loader, transforms, executor, workers):
    batches = list(loader(transform=transforms.noisy, executor=executor, num_workers=workers))
    assert set(batches[0]) == {"image", "id", "random", "words", "__key__", "__padding__"}
    assert (batches[0]["image"].shape, batches[0]["image"].dtype) == ((8, 4, 4, 3), torch.float32)
    words = [word for batch in batches for word in batch["words"]]
    assert words == [[key.split("_c")[1][0]] for key in keys_of(batches)]


def test_the_random_numbers_of_a_transform_depend_on_sample_and_epoch_only(loader, transforms):
    def random_numbers(batches):
        pairs = (pair for batch in batches for pair in zip(batch["__key__"], batch["random"], strict=True))
        return {key: int(number) for key, number in pairs}

    one, three = (loader(transform=transforms.noisy, shuffle=True, num_workers=workers) for workers in (1, 3))
    first, second = random_numbers(one), random_numbers(one)
    assert [random_numbers(three), random_numbers(three)] == [first, second]
    assert len({*first.values(), *second.values()}) == 2 * SAMPLES
    assert random_numbers(loader(transform=transforms.noisy)) == first  # in another order
    assert random_numbers(loader(transform=transforms.noisy, seed=1)) != first


def test_a_transform_that_changes_the_shape_is_an_error_with_both_shapes(loader, transforms):
    with pytest.raises(PenstockError, match=r"transform gave 'image' as uint8\[25, 13, 3\] where .*\[26, 13, 3\]"):
        keys_of(loader(transform=transforms.wrong))


def test_a_batch_transform_gets_the_delivered_batch(loader):
    means = list(loader(batch_transform=lambda batch: (batch["__key__"], batch["image"].float().mean())))
    assert [len(keys) for keys, _ in means] == [8, 8, 8, 6]
    assert all(isinstance(mean, torch.Tensor) for _, mean in means)


def test_a_batch_whose_transform_failed_does_not_count_as_delivered(loader):
    def refuse(batch):
        raise ZeroDivisionError

    failing = loader(batch_transform=refuse)
    with pytest.raises(ZeroDivisionError):
        next(iter(failing))
    assert failing.state_dict()["position"] == 0


# -- closing, repr and refused settings ------------------------------------------------------------------------


def test_repr_has_the_position_and_the_workers(loader):
    loader = loader()
    assert repr(loader) == "<Loader: 3 shards, batches of 8; epoch 0, 0 of 30 samples; idle>"
    iterator = iter(loader)
    next(iterator)
    assert repr(loader) == "<Loader: 3 shards, batches of 8; epoch 0, 8 of 30 samples; 2 workers (thread)>"
    iterator.close()
    assert repr(loader).endswith("epoch 0, 8 of 30 samples; idle>")


def test_a_closed_loader_can_be_used_again(loader):
    closed = loader()
    first = keys_of(closed)
    closed.close()
    closed.close()
    assert keys_of(closed) == first


def test_closing_during_an_epoch_ends_it_with_an_error(loader):
    closed = loader()
    iterator = iter(closed)
    next(iterator)
    closed.close()
    with pytest.raises(PenstockError, match="closed"):
        next(iterator)


def test_no_fields_and_wrong_fields_are_refused(loader):
    with pytest.raises(SettingError, match="needs fields"):
        loader(fields={})
    with pytest.raises(PenstockError, match=r"\.webp"):
        loader(fields={"image": penstock.Raw(".webp")})


@pytest.mark.parametrize("wrong", [{"max_samples": 0}, {"lanes": 0}, {"block_bytes": 0}, {"num_workers": -1}])
def test_a_setting_that_cannot_be_used_is_named(loader, wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        loader(**wrong)


def test_shards_without_a_complete_sample_are_refused(tmp_path):
    path = tmp_path / "orphans.tar"
    path.write_bytes(tar_bytes([("a.jpg", b"x"), ("b.json", b"{}")]))
    with pytest.raises(ShardError, match="no whole sample"):
        penstock.Loader(path, FIELDS, 2, on_error="skip")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_refused_before_the_engine_starts(loader):
    with pytest.raises(SettingError, match="there is no cuda:1: torch sees no CUDA device"):
        next(iter(loader(device="cuda:1")))
