import os
import pickle

import numpy as np
import pytest

from penstock.errors import SettingError, ShardError
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.sources import find_pack_sources
from penstock.testing import IMAGENET, SA1B, corrupt, make_folder, make_shards, tar_bytes

MIB = 1 << 20


def keys_of(plan):
    return [sample.key for task in plan.tasks() for selection in task.selections for sample in selection.samples]


@pytest.fixture
def noise(tmp_path, noise_shard):
    """Three shards of 20 samples of 100 KB: 6 MB in all."""
    for number in range(3):
        noise_shard(tmp_path / "noise" / f"{number}.tar", 20, first=20 * number)
    return tmp_path / "noise"


def test_every_sample_is_in_one_task_and_in_source_order(noise, plan_of):
    plan = plan_of(noise, shard_bytes=MIB)
    assert keys_of(plan) == [f"{number:05d}" for number in range(60)]
    assert plan.samples == 60
    assert plan.source_bytes == 60 * (100_352 + 2 * 512 + 512)


def test_shards_are_closed_at_the_requested_size(noise, plan_of):
    sizes = [
        sum(part.length for selection in task.selections for sample in selection.samples for part in sample.parts)
        for task in plan_of(noise, shard_bytes=2 * MIB).tasks()
    ]
    assert all(2 * MIB - 100_000 < size < 2 * MIB + 100_000 for size in sizes[:-1])
    assert len(sizes) == 3


def test_a_shard_may_have_samples_of_several_sources(noise, plan_of):
    (task,) = plan_of(noise).tasks()
    assert [len(selection.samples) for selection in task.selections] == [20, 20, 20]


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_compressed_source_is_read_by_a_single_task(tmp_path, plan_of, compression):
    paths = make_shards(tmp_path, SA1B, samples=90, shards=2, compression=compression, scale=0.1)
    plan = plan_of(tmp_path, shard_bytes=MIB)
    assert plan.source_bytes > 2 * MIB
    counts = [(selection.path, len(selection.samples)) for task in plan.tasks() for selection in task.selections]
    assert counts == [(str(path), 45) for path in paths]
    assert len(plan.shards) == 2


def test_plain_and_compressed_sources_are_planned_together(tmp_path, plan_of, noise_shard):
    noise_shard(tmp_path / "a.tar", 12)
    make_shards(tmp_path, SA1B, samples=3, compression="gz", scale=0.1)
    noise_shard(tmp_path / "z.tar", 12, first=100)
    plan = plan_of(tmp_path, shard_bytes=MIB)
    assert len(keys_of(plan)) == len(set(keys_of(plan))) == 27
    assert [selection.sequential for task in plan.tasks() for selection in task.selections].count(True) == 1


def test_the_same_sources_and_options_give_the_same_plan(noise, plan_of):
    plans = [plan_of(noise, shard_bytes=MIB) for _ in range(2)]
    assert plans[0].fingerprint() == plans[1].fingerprint()
    assert list(plans[0].tasks()) == list(plans[1].tasks())


@pytest.mark.parametrize(
    "other",
    [
        {"arrays": "raw"},
        {"image_size": 64},
        {"quality": 80},
        {"side": "short"},
        {"shard_bytes": 3 * MIB},
        {"prefix": "x"},
    ],
)
def test_other_options_give_other_fingerprints(noise, plan_of, other):
    plan, changed = plan_of(noise, shard_bytes=2 * MIB), plan_of(noise, **{"shard_bytes": 2 * MIB, **other})
    assert plan.fingerprint() != changed.fingerprint()
    assert {task.fingerprint for task in plan.tasks()}.isdisjoint(task.fingerprint for task in changed.tasks())


def test_a_changed_source_changes_the_fingerprints_of_the_tasks_that_read_it_only(noise, plan_of):
    before = plan_of(noise, shard_bytes=MIB)
    last = noise / "2.tar"
    os.utime(last, ns=(0, last.stat().st_mtime_ns + 1))
    after = plan_of(noise, shard_bytes=MIB)
    assert before.fingerprint() != after.fingerprint()
    for old, new in zip(before.tasks(), after.tasks(), strict=True):
        reads_it = any(selection.path == str(last) for selection in new.selections)
        assert (old.fingerprint != new.fingerprint) == reads_it


def test_a_task_can_be_pickled_and_takes_less_than_10_kb(noise, plan_of):
    for task in plan_of(noise, shard_bytes=MIB).tasks():
        data = pickle.dumps(task)
        assert pickle.loads(data) == task
        assert len(data) < 10_000


def test_sources_without_a_complete_sample_are_refused(tmp_path):
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([("1.jpg", b""), ("2.jpg", b"")]))
    options = PackOptions(on_bad="skip")
    with pytest.raises(ShardError, match="no complete sample"):
        make_plan(list(find_pack_sources(str(shard), options)), options)


# -- the size ratio ----------------------------------------------------------------------------------------------


def test_with_the_default_options_the_size_ratio_is_one(noise, plan_of):
    assert plan_of(noise).size_ratio == 1.0


def test_the_size_ratio_is_measured_on_trial_samples(tmp_path, plan_of):
    src = make_folder(tmp_path / "src", IMAGENET, samples=20)
    assert plan_of(src, image_size=64).size_ratio < 0.2


def test_bad_trial_samples_do_not_affect_the_size_ratio_and_stay_in_their_tasks(tmp_path, plan_of):
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([("1.jpg", b"not a JPEG"), ("2.jpg", b"not a JPEG either")]))
    plan = plan_of(shard, image_size=64)
    assert plan.size_ratio == 1.0
    assert keys_of(plan) == ["1", "2"]


@pytest.mark.parametrize("arrays", ["raw", "zstd"])
def test_shards_have_the_requested_size_if_npz_files_are_split_into_tiny_arrays(tmp_path, pack_in_process, npz, arrays):
    # headers and padding take more bytes than the arrays here: 16 arrays of 8 bytes are 16 KB in a tar
    data = npz(**{f"scalar{number:02d}": np.float64(number) for number in range(16)})
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([(f"{number:04d}.npz", data) for number in range(400)]))
    packed = pack_in_process(shard, tmp_path / "packed", arrays=arrays, shard_bytes=MIB)
    sizes = [report.size_bytes for report in packed.reports]
    assert len(sizes) > 3
    assert all(0.8 * MIB < size < 1.2 * MIB for size in sizes[:-1])


def test_shards_have_the_requested_size_if_images_are_shrunk(tmp_path, pack_in_process):
    src = make_folder(tmp_path / "src", IMAGENET, samples=40)
    packed = pack_in_process(src, tmp_path / "packed", image_size=400, shard_bytes=MIB)
    sizes = [report.size_bytes for report in packed.reports]
    assert len(sizes) > 1
    assert all(0.6 * MIB < size < 1.5 * MIB for size in sizes[:-1])


# -- keys that occur in more than one source ---------------------------------------------------------------------


def shards_with_equal_keys(tmp_path, *names):
    """Write a shard with the keys 0001 and 0002 under each name; return their folder."""
    for number, name in enumerate(names):
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tar_bytes([("0001.txt", str(number).encode()), ("0002.txt", b"x")]))
    return tmp_path / "src"


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["a.tar", "b.tar"], ""),
        (["train/000.tar", "val/000.tar"], "*/*.tar"),
        (["data.v1.tar", "data.v2.tar"], "*.tar"),
        (["a/x/000.tar", "b/x/000.tar", "a/001.tar"], "**/*.tar"),
    ],
)
def test_keys_that_occur_in_several_sources_are_prefixed_with_the_source(
    tmp_path, pack_in_process, contents, names, pattern
):
    src = shards_with_equal_keys(tmp_path, *names)
    packed = pack_in_process(src / pattern, tmp_path / "packed")
    assert packed.plan.prefix_keys
    members = contents(packed.folder)
    assert len({name for name, _ in members}) == len(members) == 2 * len(names)
    sources = sorted(data.decode() for name, data in members if name.endswith("/0001.txt"))
    assert sources == [str(number) for number in range(len(names))]
    assert [report.samples for report in packed.reports] == [2 * len(names)]


def test_the_prefix_is_the_name_of_the_shard_without_its_folder_if_that_is_unique(tmp_path, pack_in_process, contents):
    packed = pack_in_process(shards_with_equal_keys(tmp_path, "a.tar", "b.tar"), tmp_path / "packed")
    assert [name for name, _ in contents(packed.folder)] == ["a/0001.txt", "a/0002.txt", "b/0001.txt", "b/0002.txt"]


def test_a_shard_given_twice_is_refused(tmp_path, plan_of):
    src = shards_with_equal_keys(tmp_path, "a.tar")
    with pytest.raises(SettingError, match="twice"):
        plan_of(src / "{a,./a}.tar")


def test_keys_are_not_prefixed_if_no_two_sources_share_one(noise, plan_of):
    assert not plan_of(noise).prefix_keys


def test_source_bytes_are_the_sizes_of_the_tars_without_their_end_marks(tmp_path, plan_of):
    paths = make_shards(tmp_path, SA1B, samples=10, shards=2, scale=0.1)
    plan = plan_of(tmp_path)
    max_end_marks = 2 * 10240  # the end mark of each shard, padded to a record
    assert 0 <= sum(path.stat().st_size for path in paths) - plan.source_bytes <= max_end_marks


def test_a_corrupt_stored_index_does_not_change_the_plan(noise, plan_of):
    before = plan_of(noise)
    sidecar = noise / "0.tar.pidx"
    sidecar.write_bytes(corrupt.flip_bit(sidecar.read_bytes(), 40))
    assert list(plan_of(noise).tasks()) == list(before.tasks())


def test_a_cast_of_an_array_that_no_trial_sample_has_is_refused_by_name(tmp_path):
    make_folder(tmp_path / "loose", SA1B, samples=2, scale=0.05)
    options = PackOptions(arrays="raw", casts=(("featurs", "float32"),))
    with pytest.raises(SettingError, match="no sample has an array 'featurs'") as caught:
        make_plan(list(find_pack_sources(str(tmp_path / "loose"), options)), options)
    assert "edge, features" in str(caught.value)


def test_the_fingerprints_do_not_depend_on_on_bad(tmp_path):
    # so a pack that ended at a bad sample can be continued with "skip"
    make_folder(tmp_path / "loose", SA1B, samples=2, scale=0.05)
    fingerprints = set()
    for on_bad in ("raise", "skip"):
        options = PackOptions(on_bad=on_bad)
        plan = make_plan(list(find_pack_sources(str(tmp_path / "loose"), options)), options)
        fingerprints.add((plan.fingerprint(), *(task.fingerprint for task in plan.tasks())))
    assert len(fingerprints) == 1


def test_required_suffixes_pair_parts_that_inference_would_not_pair(tmp_path):
    for number in range(3):
        for camera in ("front", "back"):
            (tmp_path / f"{number:04d}_{camera}.txt").write_text("x")
    options = PackOptions(require=("_front.txt", "_back.txt"))
    (source,) = find_pack_sources(str(tmp_path), options)
    assert source.index.keys == ["0000", "0001", "0002"]
    assert len(source.complete) == 3
