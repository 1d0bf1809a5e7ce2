import numpy as np
import pytest

torch = pytest.importorskip("torch")

from penstock.bench import penstock_loader, torch_loader  # noqa: E402
from penstock.bench.fields import guess_fields, parse_field  # noqa: E402
from penstock.bench.loader_run import digest  # noqa: E402
from penstock.bench.workload import make_workload  # noqa: E402
from penstock.testing import SA1B, make_shards, sample_parts, tar_bytes  # noqa: E402


@pytest.mark.parametrize("order", ["grouped", "shuffled"])
def test_both_loaders_deliver_the_same_samples(tmp_path, order):
    shards = [str(path) for path in make_shards(tmp_path, SA1B, samples=6, shards=2, order=order, scale=0.1)]
    workload = make_workload(
        shards, guess_fields(shards[0], size=64).fields, 2, samples=100, min_shards=1, folder=tmp_path
    )
    expected = {sample["__key__"]: sample for sample in torch_loader.PlainTars(workload)}
    count = 0
    for batch in penstock_loader.batches(workload):
        for position, key in enumerate(batch["__key__"]):
            count += 1
            for name in ("features", "edge"):
                assert torch.equal(batch[name][position], expected[key][name])
            image, plain_image = batch["image"][position], expected[key]["image"]
            assert (image.shape, image.dtype) == (plain_image.shape, plain_image.dtype)
            assert (
                np.abs(image.numpy().astype(int) - plain_image.numpy()).mean() < 8
            )  # the same image by another decoder
    assert count == len(expected) == 6


def test_a_part_with_a_longer_suffix_is_not_taken_for_a_sample(tmp_path):
    jpeg = sample_parts(SA1B, 0, scale=0.05)[".jpg"]
    members = [(f"{key}{suffix}", jpeg) for key in "abcd" for suffix in (".jpg", ".cam.jpg")]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    field = parse_field("image=.jpg:16")
    workload = make_workload([str(tmp_path / "a.tar")], (field,), 2, samples=100, min_shards=1, folder=tmp_path)
    assert [sample["__key__"] for sample in torch_loader.PlainTars(workload)] == ["a", "b", "c", "d"]


def test_arrays_without_a_name_are_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "a.tar").write_bytes(tar_bytes([(f"{key}.npy", data) for key in "ab"]))
    workload = make_workload(
        [str(tmp_path / "a.tar")], (parse_field("x=.npy"),), 1, samples=9, min_shards=1, folder=tmp_path
    )
    assert [sample["x"].tolist() for sample in torch_loader.PlainTars(workload)] == [[0, 1, 2, 3, 4, 5]] * 2


def test_keys_are_those_of_the_index_in_folders_and_in_any_alphabet(tmp_path):
    jpeg = sample_parts(SA1B, 0, scale=0.05)[".jpg"]
    names = ["./a.b/1.jpg", "./a.b/2.jpg", "猫/" + "x" * 120 + ".jpg"]
    (tmp_path / "a.tar").write_bytes(tar_bytes([(name, jpeg) for name in names]))
    workload = make_workload(
        [str(tmp_path / "a.tar")], (parse_field("image=.jpg:16"),), 1, samples=9, min_shards=1, folder=tmp_path
    )
    assert workload.samples == 3
    assert digest(sample["__key__"] for sample in torch_loader.PlainTars(workload)) == workload.keys_digest
