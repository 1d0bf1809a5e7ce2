import io
import pickle
import shutil
import subprocess
import tarfile

import deflate
import numpy as np
import pytest
from tests.support import hostile

from penstock.errors import DecodeError, GuardError, SampleError, ShardError
from penstock.shards.codecs import decode_jpeg, decode_npy, decode_npy_zst
from penstock.shards.index import index_path_beside, load_index, save_index
from penstock.shards.pack.write import WORK_FOLDER, finished_report, pack_shard, report_path
from penstock.shards.scan import scan_shard
from penstock.shards.validate import check_samples
from penstock.testing import IMAGENET, MULTICAMERA, REID, SA1B, make_folder, make_shards, tar_bytes

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path):
    """A target folder with the work folder that a run creates before it executes tasks."""
    target = tmp_path / "packed"
    (target / WORK_FOLDER).mkdir(parents=True)
    return target


@pytest.fixture
def task(tmp_path, noise_shard, plan_of):
    (single_task,) = plan_of(noise_shard(tmp_path / "src" / "a.tar", 3, 1000)).tasks()
    return single_task


# -- the samples in a shard --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
@pytest.mark.parametrize("order", ["adjacent", "interleaved", "grouped", "shuffled"])
def test_every_order_and_compression_packs_the_same_samples(
    tmp_path, pack_in_process, contents, originals, order, compression
):
    make_shards(tmp_path / "src", SA1B, samples=6, shards=2, order=order, compression=compression, scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed")
    expected = {
        key + suffix.replace("_features", ".features"): data
        for key, parts in originals(SA1B, 6).items()
        for suffix, data in parts.items()
    }
    members = contents(packed.folder)
    assert dict(members) == expected
    assert len(members) == len(expected)
    keys = [name.split(".")[0] for name, _ in members]
    assert keys[::2] == keys[1::2]  # the two parts of a sample are neighbours
    assert sum(report.samples for report in packed.reports) == 6


@pytest.mark.parametrize("preset", [SA1B, IMAGENET, REID, MULTICAMERA], ids=lambda preset: preset.name)
def test_loose_files_pack_to_the_same_samples(tmp_path, pack_in_process, contents, originals, preset):
    packed = pack_in_process(make_folder(tmp_path / "src", preset, samples=4, scale=0.1), tmp_path / "packed")
    index = scan_shard(packed.folder / "shard-000000.tar")
    assert sorted(index.keys) == sorted(originals(preset, 4))
    assert check_samples(index).problems == []
    expected = [data for parts in originals(preset, 4).values() for data in parts.values()]
    assert sorted(data for _, data in contents(packed.folder)) == sorted(expected)


@pytest.mark.parametrize(
    ("codec", "ending", "decode"), [("raw", "npy", decode_npy), ("zstd", "npy.zst", decode_npy_zst)]
)
def test_packing_keeps_the_values_of_arrays_and_the_bytes_of_small_images(
    tmp_path, pack_in_process, contents, originals, codec, ending, decode
):
    make_shards(tmp_path / "src", SA1B, samples=3, order="grouped", scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed", arrays=codec, image_size=225)
    members = dict(contents(packed.folder))
    for key, parts in originals(SA1B, 3).items():
        assert members[f"{key}.jpg"] == parts[".jpg"]
        with np.load(io.BytesIO(parts["_features.npz"])) as arrays:
            for name in arrays.files:
                stored = decode(members[f"{key}.features.{name}.{ending}"])
                assert stored.dtype == arrays[name].dtype
                assert np.array_equal(stored, arrays[name])


def test_packing_shrinks_images_and_casts_arrays_as_requested(tmp_path, pack_in_process, contents, originals):
    make_shards(tmp_path / "src", SA1B, samples=3, scale=0.1)
    packed = pack_in_process(
        tmp_path / "src", tmp_path / "packed", image_size=96, arrays="raw", casts=(("features", "float32"),)
    )
    members = dict(contents(packed.folder))
    for key in originals(SA1B, 3):
        assert decode_jpeg(members[f"{key}.jpg"]).shape == (64, 96, 3)
        assert decode_npy(members[f"{key}.features.features.npy"]).dtype == np.float32
        assert decode_npy(members[f"{key}.features.edge.npy"]).dtype == np.uint8


def test_packing_a_pack_to_raw_and_back_to_zstd_gives_the_same_bytes(tmp_path, pack_in_process):
    make_shards(tmp_path / "src", SA1B, samples=4, order="shuffled", scale=0.1)
    zstd = pack_in_process(tmp_path / "src", tmp_path / "zstd", arrays="zstd")
    raw = pack_in_process(zstd.folder, tmp_path / "raw", arrays="raw")
    zstd_again = pack_in_process(raw.folder, tmp_path / "zstd-again", arrays="zstd")
    name = "shard-000000.tar"
    assert (zstd_again.folder / name).read_bytes() == (zstd.folder / name).read_bytes()
    assert (raw.folder / name).read_bytes() != (zstd.folder / name).read_bytes()


# -- keys --------------------------------------------------------------------------------------------------------

UNUSUAL_KEYS = [
    "a/b/c/0001",
    "v1.5/0001",
    "./0001",
    "日本/猫",
    "naïve",
    "x" * 99,
    "y" * 300,
    "/".join(["d" * 90] * 4),
    "長" * 200,
    "with space",
    "quote'\"",
]


def test_unusual_keys_are_kept(tmp_path, pack_in_process, contents):
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([(key + end, key.encode()) for key in UNUSUAL_KEYS for end in (".txt", "_note.bin")]))
    packed = pack_in_process(shard, tmp_path / "packed")
    expected = [(key + end, key.encode()) for key in UNUSUAL_KEYS for end in (".txt", ".note.bin")]
    assert contents(packed.folder) == expected
    packed_shard = packed.folder / "shard-000000.tar"
    assert scan_shard(packed_shard).keys == UNUSUAL_KEYS
    assert load_index(packed_shard).keys == UNUSUAL_KEYS


def test_unusual_names_of_loose_files_are_kept(tmp_path, pack_in_process, contents):
    keys = [key for key in UNUSUAL_KEYS if len(key.encode()) < 200 and not key.startswith(".")]
    for key in keys:
        path = tmp_path / "src" / (key + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(key.encode())
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed")
    assert dict(contents(packed.folder)) == {key + ".txt": key.encode() for key in keys}


def test_the_suffix_begins_at_the_first_dot_as_in_webdataset(tmp_path, pack_in_process, contents):
    shard = tmp_path / "a.tar"
    shard.write_bytes(
        tar_bytes([("1.left.txt", b"a"), ("2.left.txt", b"b"), ("1.right.txt", b"c"), ("2.right.txt", b"d")])
    )
    packed = pack_in_process(shard, tmp_path / "packed")
    assert [name for name, _ in contents(packed.folder)] == ["1.left.txt", "1.right.txt", "2.left.txt", "2.right.txt"]
    assert packed.reports[0].samples == 2


def test_a_shard_whose_names_readers_would_pair_differently_is_refused(tmp_path, plan_of, folder):
    # In the whole source `_copy` marks no part, since most stems with it have no partner. The first output shard has
    # only `cat` and `cat_copy`, which readers would pair into one sample.
    names = ["cat.bin", "cat.txt", "cat_copy.bin", "dog_copy.bin", "cow_copy.bin", "hen_copy.bin"]
    rng = np.random.default_rng(0)
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([(name, rng.bytes(600_000 if ".bin" in name else 9)) for name in names]))
    first, *others = plan_of(shard, shard_bytes=MIB).tasks()
    with pytest.raises(ShardError, match="cat_copy") as caught:
        pack_shard(first, folder)
    assert caught.value.advice
    assert not list(folder.glob("*.tar"))
    assert sum(pack_shard(task, folder).samples for task in others) == 3


# -- an ordinary tar ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar on this machine")
def test_tar_lists_and_extracts_a_packed_shard(tmp_path, pack_in_process, contents):
    make_shards(tmp_path / "src", SA1B, samples=3, order="grouped", scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed", arrays="raw")
    shard = packed.folder / "shard-000000.tar"
    members = contents(packed.folder)
    listed = subprocess.run(["tar", "tf", shard], check=True, capture_output=True, text=True)
    assert listed.stdout.splitlines() == [name for name, _ in members]
    assert listed.stderr == ""
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "xf", shard, "-C", tmp_path / "out"], check=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == dict(members)


def test_the_headers_have_fixed_times_owners_and_modes(task, folder):
    pack_shard(task, folder)
    with tarfile.open(folder / task.name) as tar:
        fields = {(member.mtime, member.uid, member.gid, member.uname, member.gname, member.mode) for member in tar}
    assert fields == {(0, 0, 0, "", "", 0o644)}


# -- index and report --------------------------------------------------------------------------------------------


def test_the_index_equals_that_of_a_scan_and_has_the_crc_of_every_part(tmp_path, pack_in_process, contents):
    make_shards(tmp_path / "src", SA1B, samples=4, order="shuffled", scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed", arrays="zstd")
    shard = packed.folder / "shard-000000.tar"
    stored, scanned = load_index(shard), scan_shard(shard)
    assert stored.binding == scanned.binding
    assert (stored.keys, stored.suffixes) == (scanned.keys, scanned.suffixes)
    assert np.array_equal(stored.offsets, scanned.offsets)
    assert np.array_equal(stored.lengths, scanned.lengths)
    assert stored.crcs.tolist() == [deflate.crc32(data) for _, data in contents(packed.folder)]
    assert index_path_beside(shard).exists()


def test_the_report_has_the_counts_and_fields_of_the_shard(tmp_path, pack_in_process, contents):
    make_shards(tmp_path / "src", SA1B, samples=4, scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed", arrays="raw")
    (report,) = packed.reports
    members = contents(packed.folder)
    assert (report.name, report.samples, report.parts, report.skipped) == ("shard-000000.tar", 4, 12, [])
    assert report.size_bytes == (packed.folder / report.name).stat().st_size
    assert set(report.fields) == {".jpg", ".features.features.npy", ".features.edge.npy"}
    features = report.fields[".features.features.npy"]
    assert (features.codec, features.parts, features.dtype, features.shape) == ("npy", 4, "<f2", (256, 6, 6))
    assert features.size_bytes == sum(len(data) for name, data in members if name.endswith("features.npy"))
    image = report.fields[".jpg"]
    assert (image.codec, image.dtype, image.shape) == ("jpeg", "|u1", (150, 225, 3))


def test_the_report_has_the_dtype_and_shape_of_compressed_arrays(tmp_path, pack_in_process):
    make_shards(tmp_path / "src", SA1B, samples=2, scale=0.1)
    (report,) = pack_in_process(tmp_path / "src", tmp_path / "packed", arrays="zstd").reports
    features = report.fields[".features.features.npy.zst"]
    assert (features.codec, features.dtype, features.shape) == ("npy.zst", "<f2", (256, 6, 6))


def test_a_dtype_or_shape_that_differs_between_samples_is_none(tmp_path, pack_in_process, npz):
    shard = tmp_path / "a.tar"
    arrays = [np.zeros(3, np.float32), np.zeros(4, np.float32), np.zeros(3, np.float64)]
    shard.write_bytes(tar_bytes([(f"{number}.npz", npz(x=array)) for number, array in enumerate(arrays)]))
    (report,) = pack_in_process(shard, tmp_path / "packed", arrays="raw").reports
    assert (report.fields[".x.npy"].dtype, report.fields[".x.npy"].shape) == (None, None)


# -- tasks can be executed anywhere, and again -------------------------------------------------------------------


def test_a_pickled_task_writes_the_same_shard(task, folder, tmp_path):
    other_folder = tmp_path / "other"
    (other_folder / WORK_FOLDER).mkdir(parents=True)
    report = pack_shard(task, folder)
    assert pickle.loads(pickle.dumps(pack_shard))(pickle.loads(pickle.dumps(task)), other_folder) == report
    assert (folder / task.name).read_bytes() == (other_folder / task.name).read_bytes()


def test_a_task_executed_twice_leaves_one_shard(task, folder, temporaries):
    report = pack_shard(task, folder)
    data = (folder / task.name).read_bytes()
    assert pack_shard(task, folder) == report
    assert (folder / task.name).read_bytes() == data
    assert sorted(path.name for path in folder.iterdir()) == [WORK_FOLDER, task.name, task.name + ".pidx"]
    assert temporaries(folder) == []


def test_a_finished_task_is_recognised_by_its_report(task, folder):
    assert finished_report(task, folder) is None
    report = pack_shard(task, folder)
    assert finished_report(task, folder) == report


@pytest.mark.parametrize("file", ["shard", "index", "report"])
@pytest.mark.parametrize("damage", ["removed", "cut short"])
def test_a_task_with_a_missing_or_truncated_file_is_not_finished(task, folder, file, damage):
    pack_shard(task, folder)
    shard = folder / task.name
    path = {"shard": shard, "index": index_path_beside(shard), "report": report_path(folder, task.name)}[file]
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    assert finished_report(task, folder) is None
    report = pack_shard(task, folder)
    assert finished_report(task, folder) == report


def test_a_task_whose_index_has_no_crcs_is_not_finished(task, folder):
    pack_shard(task, folder)
    save_index(scan_shard(folder / task.name), folder / task.name)
    assert finished_report(task, folder) is None


def test_a_task_with_other_options_is_not_finished_by_an_existing_report(tmp_path, noise_shard, plan_of, folder):
    src = noise_shard(tmp_path / "src" / "a.tar", 3, 1000)
    (task,), (other_task,) = plan_of(src).tasks(), plan_of(src, quality=50).tasks()
    pack_shard(task, folder)
    assert finished_report(other_task, folder) is None


# -- bad samples -------------------------------------------------------------------------------------------------


def make_shard_with_bad_part(folder, bad_member, bad_data):
    """Write a shard of five samples, of which one part is replaced."""
    (shard,) = make_shards(folder, SA1B, samples=5, scale=0.1)
    with tarfile.open(shard) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]
    shard.write_bytes(tar_bytes([(name, bad_data if name == bad_member else data) for name, data in members]))
    return shard


BAD_PARTS = {
    "web page instead of a JPEG": ("sa_000003.jpg", b"<html>404</html>"),
    "JPEG cut short": ("sa_000003.jpg", hostile.jpeg_of_size(225, 150)[:-2]),
    "huge JPEG": ("sa_000003.jpg", hostile.jpeg_of_size(65500, 65500)),
    "pickle": ("sa_000003_features.npz", hostile.pickle_npz()),
    "NPZ cut short": ("sa_000003_features.npz", hostile.pickle_npz()[:-30]),
    "overlapping NPZ": ("sa_000003_features.npz", hostile.overlapping_npz()),
}


@pytest.mark.parametrize(("member", "data"), BAD_PARTS.values(), ids=BAD_PARTS)
def test_a_bad_sample_ends_the_task_with_an_error_that_names_it(tmp_path, plan_of, folder, temporaries, member, data):
    shard = make_shard_with_bad_part(tmp_path / "src", member, data)
    (task,) = plan_of(shard, arrays="raw").tasks()
    with pytest.raises(GuardError) as caught:
        pack_shard(task, folder)
    offset = next(part.offset for part in task.selections[0].samples[2].parts if member.endswith(part.suffix))
    assert (caught.value.shard, caught.value.member, caught.value.offset) == (str(shard), member, offset)
    assert caught.value.advice
    assert not (folder / task.name).exists()
    assert temporaries(folder) == []


@pytest.mark.parametrize(("member", "data"), BAD_PARTS.values(), ids=BAD_PARTS)
def test_with_skip_a_bad_sample_is_left_out_and_listed(tmp_path, pack_in_process, contents, member, data):
    shard = make_shard_with_bad_part(tmp_path / "src", member, data)
    packed = pack_in_process(shard, tmp_path / "packed", arrays="raw", on_bad="skip")
    (report,) = packed.reports
    (line,) = report.skipped
    assert (line["shard"], line["member"]) == (str(shard), member)
    assert line["offset"] > 0
    assert line["reason"]
    assert report.samples + len(report.skipped) == packed.plan.samples == 5
    assert not any(name.startswith("sa_000003") for name, _ in contents(packed.folder))
    assert {fact.parts for fact in report.fields.values()} == {4}


def test_the_error_of_a_cast_that_does_not_fit_names_its_part(tmp_path, plan_of, folder):
    (shard,) = make_shards(tmp_path / "src", SA1B, samples=2, scale=0.1)
    (task,) = plan_of(shard, arrays="raw", casts=(("features", "uint8"),)).tasks()
    with pytest.raises(DecodeError, match="'features' does not fit") as caught:
        pack_shard(task, folder)
    assert caught.value.member == "sa_000001_features.npz"
    assert caught.value.offset == task.selections[0].samples[0].part("_features.npz").offset


def test_a_shard_with_only_bad_samples_is_written_without_members(tmp_path, pack_in_process):
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([("1.jpg", b"no"), ("2.jpg", b"neither")]))
    packed = pack_in_process(shard, tmp_path / "packed", on_bad="skip")
    (report,) = packed.reports
    assert (report.samples, len(report.skipped)) == (0, 2)
    (task,) = packed.plan.tasks()
    assert finished_report(task, packed.folder) == report


def test_two_parts_that_would_get_the_same_suffix_make_the_sample_bad(tmp_path, plan_of, folder):
    shard = tmp_path / "a.tar"
    members = [(f"{key}{end}.txt", b"x") for key in "abc" for end in ("", "_note", ".note")]
    shard.write_bytes(tar_bytes(members))
    (task,) = plan_of(shard).tasks()
    with pytest.raises(SampleError, match=r"'\.note\.txt'") as caught:
        pack_shard(task, folder)
    assert (caught.value.shard, caught.value.member) == (str(shard), "a.txt")
