"""Arrays without a fixed shape, end to end: in shared memory if they fit, otherwise over the pipe."""

import sys
import tarfile

import numpy as np
import pytest

import penstock
from penstock.data.fields.base import SampleContext
from penstock.engine import workers as workers_module
from penstock.runtime.engine_size import MIN_ARENA_BYTES, PROCESS_BYTES
from penstock.shards.codecs.arrays import encode_npy
from penstock.testing import IMAGENET, corrupt, make_shards, tar_bytes

SAMPLES = 24
LARGE = 13
"""The number of a sample that is larger than the space that the first samples suggest."""
FIELDS = {"points": penstock.Array(".npy", ragged=True), "number": penstock.Label(".cls")}
EXECUTORS = ["thread", "process"]
FEW_SLABS = MIN_ARENA_BYTES + (300 << 10)
"""A memory budget for so few slabs that they are reused within an epoch."""


def stored(number):
    """Return the array of a sample. Sizes vary, so that space is reused for less than it held."""
    count = 20_000 if number == LARGE else 700 + 397 * number % 500
    return np.random.default_rng(number).random((count, 3), np.float32)


def expected(numbers):
    return [(number, stored(number).tobytes()) for number in numbers]


def delivered(batches):
    return [
        (number, points.tobytes())
        for batch in batches
        for number, points in zip(batch["number"].tolist(), batch["points"], strict=True)
    ]


@pytest.fixture
def shard(tmp_path):
    """Write a shard in which these samples are damaged."""

    def make(*bad):
        members = []
        for number in range(SAMPLES):
            data = encode_npy(stored(number))
            members.append((f"{number:04}.npy", corrupt.truncate(data, 40) if number in bad else data))
            members.append((f"{number:04}.cls", str(number).encode()))
        path = tmp_path / "points.tar"
        path.write_bytes(tar_bytes(members))
        return path

    return make


@pytest.fixture
def loader(make_loader, shard):
    """Make loaders over such a shard."""
    return lambda bad=(), batch_size=4, **settings: make_loader(shard(*bad), FIELDS, batch_size, **settings)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_every_array_is_delivered_as_stored_in_each_epoch(loader, executor, device):
    memory_bytes = FEW_SLABS + (2 * PROCESS_BYTES if executor == "process" else 0)
    again = loader(executor=executor, device=device, shuffle=True, memory_bytes=memory_bytes)
    for _ in range(3):
        assert sorted(delivered(again)) == expected(range(SAMPLES))
    assert again._engine.plan.slabs < len(again)


def test_a_batch_has_numpy_arrays_of_the_stored_shapes(loader):
    points = next(iter(loader()))["points"]
    assert [(type(array), array.dtype, array.shape) for array in points] == [
        (np.ndarray, np.float32, stored(number).shape) for number in range(4)
    ]
    assert all(array.flags.writeable for array in points)


def test_arrays_are_in_the_slab_except_one_that_is_too_large(loader):
    whole = loader(batch_size=SAMPLES)
    batch = next(iterator := iter(whole))
    slabs = np.frombuffer(whole._engine.slabs.view, np.uint8)
    outside = [number for number, array in enumerate(batch["points"]) if not np.shares_memory(array, slabs)]
    assert outside == [LARGE]
    del slabs
    iterator.close()


def test_an_array_keeps_its_batch_unchanged(loader):
    keeping = loader(batch_size=2, memory_bytes=FEW_SLABS)
    kept = [batch["points"][1] for batch in keeping]
    assert keeping._engine.plan.slabs < len(kept)
    assert [array.tobytes() for array in kept] == [content for _, content in expected(range(1, SAMPLES, 2))]


def test_an_array_stays_valid_after_its_loader_is_closed(loader):
    closed = loader()
    kept = next(iter(closed))["points"][2]
    closed.close()
    assert np.array_equal(kept, stored(2))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_bad_samples_are_left_out_and_the_others_keep_their_arrays(loader, executor):
    settings = {"on_error": "skip", "max_bad_fraction": 1, "executor": executor}
    found = delivered(loader(bad=(2, 9), **settings))
    assert found == expected(number for number in range(SAMPLES) if number not in (2, 9))


def test_a_bad_sample_is_raised_when_its_batch_is_requested(loader):
    iterator = iter(loader(bad=(2,), batch_size=2))
    assert delivered([next(iterator)]) == expected([0, 1])
    with pytest.raises(penstock.errors.SampleError) as caught:
        next(iterator)
    assert caught.value.member == "0002.npy"


@pytest.mark.parametrize("field", [penstock.Image(".jpg"), penstock.Image(".jpg", size=20, fit="short")])
def test_images_of_any_size_are_delivered_complete(make_loader, tmp_path, field):
    (path,) = make_shards(tmp_path, IMAGENET, samples=12, scale=0.2)
    with tarfile.open(path) as tar:
        files = {name: tar.extractfile(name).read() for name in tar.getnames() if name.endswith(".jpg")}
    found = {
        key: image
        for batch in make_loader(path, {"image": field})
        for key, image in zip(batch["__key__"], batch["image"], strict=True)
    }
    assert len(found) == 12
    for name, data in files.items():
        assert np.array_equal(
            found[name.removesuffix(".jpg")], field.decode_value(".jpg", memoryview(data), SampleContext())
        )


# -- values sent over the pipe -----------------------------------------------------------------------------------------

TRANSFORMS = """
def halve(sample, rng):
    return {**sample, "points": sample["points"][::2]}
"""


@pytest.fixture
def transforms(tmp_path, monkeypatch):
    """A module that worker processes can import."""
    (tmp_path / "penstock_ragged_transforms.py").write_text(TRANSFORMS)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("penstock_ragged_transforms")
    del sys.modules["penstock_ragged_transforms"]


def test_no_array_that_fits_into_the_slab_is_sent_over_the_pipe(loader, transforms, monkeypatch):
    lengths = []

    def decode_result(data):
        lengths.append(len(data))
        return real(data)

    real = workers_module.decode_result
    monkeypatch.setattr(workers_module, "decode_result", decode_result)
    # with a transform there are no stopgap threads, so every result comes over a pipe
    found = delivered(loader(executor="process", transform=transforms.halve, max_samples=LARGE))
    assert found == [(number, stored(number)[::2].tobytes()) for number in range(LARGE)]
    assert sum(lengths) < 200 * LARGE < sum(len(content) for _, content in found) / 20
