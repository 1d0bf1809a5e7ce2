import numpy as np
import pytest

torch = pytest.importorskip("torch")

from penstock.bench import penstock_loader as ours  # noqa: E402
from penstock.bench import torch_loader as plain  # noqa: E402
from penstock.bench.fields import guess_fields, parse_field  # noqa: E402
from penstock.bench.trial import digest  # noqa: E402
from penstock.bench.workload import make_workload  # noqa: E402
from penstock.testing import SA1B, make_shards, sample_parts, tar_bytes  # noqa: E402


@pytest.mark.parametrize("order", ["grouped", "shuffled"])
def test_the_rival_delivers_the_same_samples_as_the_loader(tmp_path, order):
    shards = [str(path) for path in make_shards(tmp_path, SA1B, samples=6, shards=2, order=order, scale=0.1)]
    course = make_workload(shards, guess_fields(shards[0], size=64).fields, 2, samples=100, lanes=1, folder=tmp_path)
    theirs = {sample["__key__"]: sample for sample in plain.PlainTars(course)}
    seen = 0
    for batch in ours.batches(course):
        for place, key in enumerate(batch["__key__"]):
            seen += 1
            for name in ("features", "edge"):
                assert torch.equal(batch[name][place], theirs[key][name])
            mine, other = batch["image"][place], theirs[key]["image"]
            assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
            assert np.abs(mine.numpy().astype(int) - other.numpy()).mean() < 8  # another decoder, the same picture
    assert seen == len(theirs) == 6


def test_a_part_of_another_name_is_not_taken_for_a_sample(tmp_path):
    picture = sample_parts(SA1B, 0, scale=0.05)[".jpg"]
    members = [(f"{key}{suffix}", picture) for key in "abcd" for suffix in (".jpg", "_cam.jpg")]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    field = parse_field("image=.jpg:16")
    course = make_workload([str(tmp_path / "a.tar")], (field,), 2, samples=100, lanes=1, folder=tmp_path)
    assert [sample["__key__"] for sample in plain.PlainTars(course)] == ["a", "b", "c", "d"]


def test_arrays_without_a_name_are_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "a.tar").write_bytes(tar_bytes([(f"{key}.npy", data) for key in "ab"]))
    course = make_workload([str(tmp_path / "a.tar")], (parse_field("x=.npy"),), 1, samples=9, lanes=1, folder=tmp_path)
    assert [sample["x"].tolist() for sample in plain.PlainTars(course)] == [[0, 1, 2, 3, 4, 5]] * 2


def test_keys_are_those_of_the_index_in_folders_and_in_any_script(tmp_path):
    picture = sample_parts(SA1B, 0, scale=0.05)[".jpg"]
    names = ["./a.b/1.jpg", "./a.b/2.jpg", "猫/" + "x" * 120 + ".jpg"]
    (tmp_path / "a.tar").write_bytes(tar_bytes([(name, picture) for name in names]))
    course = make_workload(
        [str(tmp_path / "a.tar")], (parse_field("image=.jpg:16"),), 1, samples=9, lanes=1, folder=tmp_path
    )
    assert course.samples == 3
    assert digest(sample["__key__"] for sample in plain.PlainTars(course)) == course.keys_digest
