"""Every sample of a shard is delivered, or counted as bad or rejected: delivered + bad + filtered = samples."""

import itertools
import json
import random

import numpy as np
import pytest
import simplejpeg
import torch
from tests.support.loader_helpers import keys_of

import penstock
from penstock.errors import PairingError, SampleError
from penstock.testing import make_image, tar_bytes

LABEL = {"label": penstock.Label(".cls")}


def write_shard(path, samples):
    """Write a shard from (key, suffix -> bytes) pairs."""
    path.write_bytes(tar_bytes([(key + suffix, data) for key, parts in samples for suffix, data in parts.items()]))
    return path


def jpeg(seed=0):
    return simplejpeg.encode_jpeg(make_image(16, 16, seed))


@pytest.fixture
def labels(tmp_path):
    """Write a shard of numbered labels; those in `bad` cannot be parsed, those in `lacking` have another part only."""

    def make(count, bad=(), lacking=()):
        return write_shard(
            tmp_path / "labels.tar",
            [
                (f"{number:04}", {".txt": b"x"} if number in lacking else {".cls": b"?" if number in bad else b"7"})
                for number in range(count)
            ],
        )

    return make


# -- samples that lack a part --------------------------------------------------------------------------------------


def test_samples_that_lack_a_part_count_as_bad_with_reason_and_place(make_loader, labels, tmp_path):
    path, listed = labels(10, lacking=(2, 5, 9)), tmp_path / "bad.jsonl"
    errors = penstock.ErrorOptions("skip", bad_samples_path=str(listed))
    loader = make_loader(path, LABEL, 4, errors=errors)
    delivered = keys_of(loader)
    assert len(delivered) + loader.stats().bad == 10
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [line["member"] for line in lines] == ["0002.txt", "0005.txt", "0009.txt"]
    assert {line["shard"] for line in lines} == {str(path)}
    assert all("no .cls" in line["reason"] and line["offset"] > 0 for line in lines)


def test_they_are_raised_by_default(make_loader, labels):
    with pytest.raises(PairingError, match=r"sample has no \.cls"):
        make_loader(labels(10, lacking=(2,)), LABEL, 4)


def test_they_count_for_the_maximum_bad_fraction(make_loader, labels):
    loader = make_loader(labels(200, lacking=range(20)), LABEL, 4, on_error="skip")
    with pytest.raises(SampleError, match="20 of 200 samples are bad"):
        keys_of(loader)


def test_the_fraction_is_that_of_all_samples_whatever_an_epoch_takes(make_loader, labels):
    path = labels(400, lacking=(1, 2, 3))
    assert len(keys_of(make_loader(path, LABEL, 4, on_error="skip", max_samples=100))) == 100
    endless = make_loader(path, LABEL, 4, on_error="skip", sampler=itertools.cycle(range(397)))
    assert len(next(iter(endless))["__key__"]) == 4


def test_they_are_divided_between_ranks(make_loader, labels):
    path = labels(11, lacking=(1, 3, 5))
    loaders = [make_loader(path, LABEL, 2, on_error="skip", rank=rank, world_size=2) for rank in range(2)]
    assert sum(loader.stats().bad for loader in loaders) == 3


# -- batches without a good sample ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_an_epoch_goes_on_after_a_batch_without_a_good_sample(make_loader, labels, batch_size, executor, caplog):
    path = labels(24, bad=range(8))
    errors = penstock.ErrorOptions("skip", max_bad_fraction=1.0)
    loader = make_loader(path, LABEL, batch_size, executor=executor, errors=errors)
    assert keys_of(loader) == [f"{number:04}" for number in range(8, 24)]
    assert loader.stats().bad == 8
    assert caplog.text.count("a batch has no good sample: it is left out") == 1


def test_an_epoch_of_bad_samples_ends_without_a_batch(make_loader, labels):
    path = labels(8, bad=range(1, 8))
    loader = make_loader(path, LABEL, 1, errors=penstock.ErrorOptions("skip", max_bad_fraction=1.0))
    assert keys_of(loader) == ["0000"]
    assert keys_of(loader) == ["0000"]


def test_with_several_ranks_a_good_sample_is_repeated_so_that_ranks_stay_in_step(make_loader, labels, caplog):
    path = labels(16, bad=(4, 5))
    errors = penstock.ErrorOptions("skip", max_bad_fraction=1.0)
    batches = [
        [
            (batch["__key__"], batch["__padding__"].tolist())
            for batch in make_loader(path, LABEL, 2, errors=errors, rank=rank, world_size=2)
        ]
        for rank in range(2)
    ]
    assert [len(each) for each in batches] == [4, 4]
    assert batches[0][1] == (["0001", "0001"], [True, True])  # the batch of samples 4 and 5
    assert [padding for rank, each in enumerate(batches) for _, padding in each[2 * (1 - rank) :]] == [[False] * 2] * 6
    assert "this rank repeats a good sample" in caplog.text


# -- filter --------------------------------------------------------------------------------------------------------


def is_even(sample):
    return int(sample.key) % 2 == 0 and sample.sizes[".cls"] == 1 and sample.shard.endswith("labels.tar")


def test_a_filter_leaves_samples_out_and_they_are_counted(make_loader, labels):
    loader = make_loader(labels(10), LABEL, 2, filter=is_even)
    assert keys_of(loader) == [f"{number:04}" for number in range(0, 10, 2)]
    assert (len(loader), loader.stats().filtered, loader.stats().bad) == (3, 5, 0)


def test_a_filtered_epoch_resumes_at_the_next_sample(make_loader, labels):
    path = labels(40)
    settings = {"filter": is_even, "shuffle": True, "seed": 3}
    whole = keys_of(make_loader(path, LABEL, 2, **settings))
    first = make_loader(path, LABEL, 2, **settings)
    iterator = iter(first)
    begun = [key for _ in range(3) for key in next(iterator)["__key__"]]
    resumed = make_loader(path, LABEL, 2, **settings)
    resumed.load_state_dict(first.state_dict())
    assert begun + keys_of(resumed) == whole


def test_an_error_of_the_filter_names_the_sample(make_loader, labels):
    with pytest.raises(SampleError, match="filter failed: KeyError") as caught:
        make_loader(labels(4), LABEL, 2, filter=lambda sample: sample.sizes[".jpg"] > 0)
    assert caught.value.member == "0000"


# -- optional parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_sample_that_lacks_an_optional_part_gets_the_fill_value(make_loader, tmp_path, executor):
    samples = [(f"{n}", {".jpg": jpeg(n), **({".png.txt": b"hello"} if n % 2 else {})}) for n in range(6)]
    path = write_shard(tmp_path / "a.tar", samples)
    fields = {
        "image": penstock.Image(".jpg", size=8),
        "second": penstock.Image(".webp", size=8, optional=True, fill=7),
        "text": penstock.Text(".png.txt", optional=True),
    }
    for batch in make_loader(path, fields, 3, executor=executor):
        assert (batch["second"] == 7).all()
        assert batch["text"] == [None if int(key) % 2 == 0 else "hello" for key in batch["__key__"]]


def test_a_sample_of_optional_parts_only_may_lack_all_of_them(make_loader, tmp_path):
    path = write_shard(tmp_path / "a.tar", [("a", {".txt": b"1"}), ("b", {".bin": b"2"}), ("c", {".txt": b"3"})])
    (batch,) = make_loader(path, {"text": penstock.Text(".txt", optional=True)}, 3)
    assert batch["text"] == ["1", None, "3"]


# -- suffixes ------------------------------------------------------------------------------------------------------


def test_each_sample_may_have_another_suffix_in_any_case(make_loader, tmp_path):
    endings = [".jpg", ".JPEG", ".JPG", ".jpeg"]
    path = write_shard(tmp_path / "a.tar", [(f"{n}", {ending: jpeg(n)}) for n, ending in enumerate(endings)])
    (batch,) = make_loader(path, {"image": penstock.Image(size=16)}, 4)
    assert batch["__key__"] == ["0", "1", "2", "3"]
    assert len({image.numpy().tobytes() for image in batch["image"]}) == 4


# -- transform and collate_fn ---------------------------------------------------------------------------------------


def describe(sample, rng):
    height, width = sample["__geometry__"]["image"].image_height, sample["__geometry__"]["image"].image_width
    return {
        "image": sample["image"][:, :4].astype(np.float32),
        "number": int(sample["__key__"]),
        "area": float(height * width),
        "points": np.arange(int(sample["__key__"]) + 1),
    }


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_transform_knows_key_and_geometry_and_declares_what_it_returns(make_loader, tmp_path, executor):
    path = write_shard(tmp_path / "a.tar", [(f"{n}", {".jpg": jpeg(n)}) for n in range(6)])
    outputs = {"image": ((3, 4, 8), "float32"), "points": "ragged"}
    loader = make_loader(
        path, {"image": penstock.Image(size=8)}, 3, transform=describe, outputs=outputs, executor=executor
    )
    for batch in loader:
        numbers = [int(key) for key in batch["__key__"]]
        assert batch["image"].shape == (3, 3, 4, 8)
        assert batch["number"].tolist() == numbers
        assert batch["area"].tolist() == [256.0] * 3
        assert [points.tolist() for points in batch["points"]] == [list(range(n + 1)) for n in numbers]


def with_global_draws(sample, rng):
    return {**sample, "draws": np.array([random.random(), np.random.rand(), torch.rand(1).item()])}


def test_the_global_generators_are_seeded_for_each_sample_that_a_process_transforms(make_loader, tmp_path):
    path = write_shard(tmp_path / "a.tar", [(f"{n}", {".cls": b"1"}) for n in range(24)])

    def draws(workers, **settings):
        settings = {"executor": "process", "transform": with_global_draws, "num_workers": workers, **settings}
        loader = make_loader(path, LABEL, 4, **settings)
        return [row for batch in loader for row in map(tuple, batch["draws"].tolist())], loader

    (one, loader), (two, _), (other, _) = draws(1), draws(2), draws(1, seed=1)
    assert one == two
    assert len(set(one)) == 24
    assert not set(one) & set(other)
    following = [row for batch in loader for row in map(tuple, batch["draws"].tolist())]
    assert not set(one) & set(following)


def fail_for_three(sample, rng):
    if sample["__key__"] == "3":
        raise ValueError("three is not allowed")
    return sample


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_the_users_traceback_is_in_the_error_of_a_transform(make_loader, tmp_path, executor):
    path = write_shard(tmp_path / "a.tar", [(f"{n}", {".cls": b"1"}) for n in range(4)])
    with pytest.raises(SampleError, match="three is not allowed") as caught:
        keys_of(make_loader(path, LABEL, 2, transform=fail_for_three, executor=executor))
    (note,) = caught.value.__notes__
    assert "test_accounting.py" in note
    assert 'raise ValueError("three is not allowed")' in note


def collate(samples):
    return {
        "keys": [sample["__key__"] for sample in samples],
        "longest": max(len(sample["text"]) for sample in samples),
    }


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_collate_fn_makes_batches_of_shard_samples_in_the_workers(make_loader, tmp_path, executor):
    path = write_shard(tmp_path / "a.tar", [(f"{n}", {".txt": b"x" * n}) for n in range(1, 7)])
    loader = make_loader(path, {"text": penstock.Text(".txt")}, 4, collate_fn=collate, executor=executor)
    assert list(loader) == [
        {"keys": ["1", "2", "3", "4"], "longest": 4},
        {"keys": ["5", "6"], "longest": 6},
    ]


def test_a_bad_sample_is_left_out_of_what_collate_fn_gets(make_loader, labels):
    errors = penstock.ErrorOptions("skip", max_bad_fraction=1.0)
    loader = make_loader(labels(6, bad=(1, 4, 5)), LABEL, 2, collate_fn=len, errors=errors)
    assert list(loader) == [1, 2]
    assert loader.stats().bad == 3
