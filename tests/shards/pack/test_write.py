"""One task makes one shard: the same samples, the same bytes every time, and nothing half done."""

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
    """Where shards go, with the place for reports that a run makes."""
    made = tmp_path / "packed"
    (made / WORK_FOLDER).mkdir(parents=True)
    return made


@pytest.fixture
def task(tmp_path, noise_shard, plan_of):
    (only,) = plan_of(noise_shard(tmp_path / "src" / "a.tar", 3, 1000)).tasks()
    return only


# -- the same samples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
@pytest.mark.parametrize("order", ["adjacent", "interleaved", "grouped", "shuffled"])
def test_every_order_and_compression_packs_the_same_samples(
    tmp_path, pack_here, contents, originals, order, compression
):
    make_shards(tmp_path / "src", SA1B, samples=6, shards=2, order=order, compression=compression, scale=0.1)
    packed = pack_here(tmp_path / "src", tmp_path / "packed")
    wanted = {
        key + suffix.replace("_features", ".features"): data
        for key, parts in originals(SA1B, 6).items()
        for suffix, data in parts.items()
    }
    members = contents(packed.folder)
    assert dict(members) == wanted
    assert len(members) == len(wanted)
    keys = [name.split(".")[0] for name, _ in members]
    assert keys[::2] == keys[1::2]  # the two parts of a sample lie side by side
    assert sum(report.samples for report in packed.reports) == 6


@pytest.mark.parametrize("preset", [SA1B, IMAGENET, REID, MULTICAMERA], ids=lambda preset: preset.name)
def test_loose_files_pack_to_the_same_samples(tmp_path, pack_here, contents, originals, preset):
    packed = pack_here(make_folder(tmp_path / "src", preset, samples=4, scale=0.1), tmp_path / "packed")
    index = scan_shard(packed.folder / "shard-000000.tar")
    assert sorted(index.keys) == sorted(originals(preset, 4))
    assert check_samples(index).problems == []
    wanted = [data for parts in originals(preset, 4).values() for data in parts.values()]
    assert sorted(data for _, data in contents(packed.folder)) == sorted(wanted)


@pytest.mark.parametrize(
    ("codec", "ending", "decode"), [("raw", "npy", decode_npy), ("zstd", "npy.zst", decode_npy_zst)]
)
def test_arrays_and_small_pictures_come_through_a_pack_whole(
    tmp_path, pack_here, contents, originals, codec, ending, decode
):
    make_shards(tmp_path / "src", SA1B, samples=3, order="grouped", scale=0.1)
    packed = pack_here(tmp_path / "src", tmp_path / "packed", arrays=codec, image_size=225)
    members = dict(contents(packed.folder))
    for key, parts in originals(SA1B, 3).items():
        assert members[f"{key}.jpg"] == parts[".jpg"]
        with np.load(io.BytesIO(parts["_features.npz"])) as arrays:
            for name in arrays.files:
                stored = decode(members[f"{key}.features.{name}.{ending}"])
                assert stored.dtype == arrays[name].dtype
                assert np.array_equal(stored, arrays[name])


def test_pictures_and_casts_come_through_a_pack_as_asked(tmp_path, pack_here, contents, originals):
    make_shards(tmp_path / "src", SA1B, samples=3, scale=0.1)
    packed = pack_here(
        tmp_path / "src", tmp_path / "packed", image_size=96, arrays="raw", casts=(("features", "float32"),)
    )
    members = dict(contents(packed.folder))
    for key in originals(SA1B, 3):
        assert decode_jpeg(members[f"{key}.jpg"]).shape == (64, 96, 3)
        assert decode_npy(members[f"{key}.features.features.npy"]).dtype == np.float32
        assert decode_npy(members[f"{key}.features.edge.npy"]).dtype == np.uint8


def test_a_pack_of_a_pack_is_the_same_pack(tmp_path, pack_here):
    make_shards(tmp_path / "src", SA1B, samples=4, order="shuffled", scale=0.1)
    first = pack_here(tmp_path / "src", tmp_path / "first", arrays="zstd")
    raw = pack_here(first.folder, tmp_path / "raw", arrays="raw")
    again = pack_here(raw.folder, tmp_path / "again", arrays="zstd")
    name = "shard-000000.tar"
    assert (again.folder / name).read_bytes() == (first.folder / name).read_bytes()
    assert (raw.folder / name).read_bytes() != (first.folder / name).read_bytes()


# -- keys --------------------------------------------------------------------------------------------------------

ODD_KEYS = [
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


def test_odd_keys_come_through_a_pack(tmp_path, pack_here, contents):
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([(key + end, key.encode()) for key in ODD_KEYS for end in (".txt", "_note.txt")]))
    packed = pack_here(shard, tmp_path / "packed")
    wanted = [(key + end, key.encode()) for key in ODD_KEYS for end in (".txt", ".note.txt")]
    assert contents(packed.folder) == wanted
    out = packed.folder / "shard-000000.tar"
    assert scan_shard(out).keys == ODD_KEYS
    assert load_index(out).keys == ODD_KEYS


def test_loose_files_with_odd_names_come_through_a_pack(tmp_path, pack_here, contents):
    keys = [key for key in ODD_KEYS if len(key.encode()) < 200 and not key.startswith(".")]
    for key in keys:
        path = tmp_path / "src" / (key + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(key.encode())
    packed = pack_here(tmp_path / "src", tmp_path / "packed")
    assert dict(contents(packed.folder)) == {key + ".txt": key.encode() for key in keys}


def test_dots_before_the_extension_belong_to_the_suffix_as_in_webdataset(tmp_path, pack_here, contents):
    shard = tmp_path / "a.tar"
    shard.write_bytes(
        tar_bytes([("1.left.txt", b"a"), ("2.left.txt", b"b"), ("1.right.txt", b"c"), ("2.right.txt", b"d")])
    )
    packed = pack_here(shard, tmp_path / "packed")
    assert [name for name, _ in contents(packed.folder)] == ["1.left.txt", "1.right.txt", "2.left.txt", "2.right.txt"]
    assert packed.reports[0].samples == 2


def test_samples_that_their_new_neighbours_would_swallow_are_refused(tmp_path, plan_of, folder):
    # In all of the source "_copy" marks no part, as most have no partner; in the first output shard it would.
    names = ["cat", "cat_copy", "dog_copy", "cow_copy", "hen_copy"]
    rng = np.random.default_rng(0)
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([(f"{name}.bin", rng.bytes(600_000)) for name in names]))
    first, *others = plan_of(shard, shard_bytes=MIB).tasks()
    with pytest.raises(ShardError, match="cat_copy") as caught:
        pack_shard(first, folder)
    assert caught.value.advice
    assert not list(folder.glob("*.tar"))
    assert sum(pack_shard(task, folder).samples for task in others) == 3


# -- an ordinary tar ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar on this machine")
def test_tar_lists_and_extracts_a_packed_shard(tmp_path, pack_here, contents):
    make_shards(tmp_path / "src", SA1B, samples=3, order="grouped", scale=0.1)
    packed = pack_here(tmp_path / "src", tmp_path / "packed", arrays="raw")
    shard = packed.folder / "shard-000000.tar"
    members = contents(packed.folder)
    listed = subprocess.run(["tar", "tf", shard], check=True, capture_output=True, text=True)
    assert listed.stdout.splitlines() == [name for name, _ in members]
    assert listed.stderr == ""
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "xf", shard, "-C", tmp_path / "out"], check=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == dict(members)


def test_headers_say_nothing_of_time_or_place(task, folder):
    pack_shard(task, folder)
    with tarfile.open(folder / task.name) as tar:
        facts = {(member.mtime, member.uid, member.gid, member.uname, member.gname, member.mode) for member in tar}
    assert facts == {(0, 0, 0, "", "", 0o644)}


# -- index and report --------------------------------------------------------------------------------------------


def test_the_index_is_that_of_the_shard_with_the_crc_of_every_member(tmp_path, pack_here, contents):
    make_shards(tmp_path / "src", SA1B, samples=4, order="shuffled", scale=0.1)
    packed = pack_here(tmp_path / "src", tmp_path / "packed", arrays="zstd")
    shard = packed.folder / "shard-000000.tar"
    stored, walked = load_index(shard), scan_shard(shard)
    assert stored.binding == walked.binding
    assert (stored.keys, stored.suffixes) == (walked.keys, walked.suffixes)
    assert np.array_equal(stored.offsets, walked.offsets)
    assert np.array_equal(stored.lengths, walked.lengths)
    assert stored.crcs.tolist() == [deflate.crc32(data) for _, data in contents(packed.folder)]
    assert index_path_beside(shard).exists()


def test_the_report_counts_what_is_in_the_shard(tmp_path, pack_here, contents):
    make_shards(tmp_path / "src", SA1B, samples=4, scale=0.1)
    packed = pack_here(tmp_path / "src", tmp_path / "packed", arrays="raw")
    (report,) = packed.reports
    members = contents(packed.folder)
    assert (report.name, report.samples, report.parts, report.skipped) == ("shard-000000.tar", 4, 12, [])
    assert report.size_bytes == (packed.folder / report.name).stat().st_size
    assert set(report.fields) == {".jpg", ".features.features.npy", ".features.edge.npy"}
    features = report.fields[".features.features.npy"]
    assert (features.codec, features.parts, features.dtype, features.shape) == ("npy", 4, "<f2", (256, 6, 6))
    assert features.size_bytes == sum(len(data) for name, data in members if name.endswith("features.npy"))
    picture = report.fields[".jpg"]
    assert (picture.codec, picture.dtype, picture.shape) == ("jpeg", "|u1", (150, 225, 3))


def test_compressed_arrays_tell_their_dtype_and_shape_too(tmp_path, pack_here):
    make_shards(tmp_path / "src", SA1B, samples=2, scale=0.1)
    (report,) = pack_here(tmp_path / "src", tmp_path / "packed", arrays="zstd").reports
    features = report.fields[".features.features.npy.zst"]
    assert (features.codec, features.dtype, features.shape) == ("npy.zst", "<f2", (256, 6, 6))


def test_what_differs_between_samples_is_not_stated(tmp_path, pack_here, npz):
    shard = tmp_path / "a.tar"
    arrays = [np.zeros(3, np.float32), np.zeros(4, np.float32), np.zeros(3, np.float64)]
    shard.write_bytes(tar_bytes([(f"{number}.npz", npz(x=array)) for number, array in enumerate(arrays)]))
    (report,) = pack_here(shard, tmp_path / "packed", arrays="raw").reports
    assert (report.fields[".x.npy"].dtype, report.fields[".x.npy"].shape) == (None, None)


# -- idempotent, free of any executor ----------------------------------------------------------------------------


def test_a_task_that_travelled_makes_the_same_shard(task, folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / WORK_FOLDER).mkdir(parents=True)
    here, there = (
        pack_shard(task, folder),
        pickle.loads(pickle.dumps(pack_shard))(pickle.loads(pickle.dumps(task)), elsewhere),
    )
    assert here == there
    assert (folder / task.name).read_bytes() == (elsewhere / task.name).read_bytes()


def test_a_task_done_twice_leaves_one_shard(task, folder, temporaries):
    first = pack_shard(task, folder)
    data = (folder / task.name).read_bytes()
    assert pack_shard(task, folder) == first
    assert (folder / task.name).read_bytes() == data
    assert sorted(path.name for path in folder.iterdir()) == [WORK_FOLDER, task.name, task.name + ".pidx"]
    assert temporaries(folder) == []


def test_a_finished_task_is_known_by_its_report(task, folder):
    assert finished_report(task, folder) is None
    report = pack_shard(task, folder)
    assert finished_report(task, folder) == report


def tear(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("which", "harm"),
    [
        ("shard", "remove"),
        ("shard", "tear"),
        ("index", "remove"),
        ("index", "tear"),
        ("report", "remove"),
        ("report", "tear"),
    ],
)
def test_a_task_with_a_piece_missing_or_torn_is_not_finished(task, folder, which, harm):
    pack_shard(task, folder)
    shard = folder / task.name
    path = {"shard": shard, "index": index_path_beside(shard), "report": report_path(folder, task.name)}[which]
    path.unlink() if harm == "remove" else tear(path)
    assert finished_report(task, folder) is None
    report = pack_shard(task, folder)
    assert finished_report(task, folder) == report


def test_an_index_without_crcs_does_not_count(task, folder):
    pack_shard(task, folder)
    save_index(scan_shard(folder / task.name), folder / task.name)
    assert finished_report(task, folder) is None


def test_the_report_of_another_task_does_not_count(tmp_path, noise_shard, plan_of, folder):
    src = noise_shard(tmp_path / "src" / "a.tar", 3, 1000)
    (task,), (other,) = plan_of(src).tasks(), plan_of(src, quality=50).tasks()
    pack_shard(task, folder)
    assert finished_report(other, folder) is None


# -- bad samples -------------------------------------------------------------------------------------------------


def spoilt(folder, spoil):
    """Five good samples, of which sample 2 has one part replaced; its shard."""
    (shard,) = make_shards(folder, SA1B, samples=5, scale=0.1)
    with tarfile.open(shard) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]
    shard.write_bytes(tar_bytes([(name, spoil.get(name, data)) for name, data in members]))
    return shard


BAD = {
    "web page for a picture": ("sa_000003.jpg", b"<html>404</html>", GuardError),
    "picture cut short": ("sa_000003.jpg", hostile.jpeg_of_size(225, 150)[:-2], GuardError),
    "huge picture": ("sa_000003.jpg", hostile.jpeg_of_size(65500, 65500), GuardError),
    "pickle": ("sa_000003_features.npz", hostile.pickle_npz(), GuardError),
    "NPZ cut short": ("sa_000003_features.npz", hostile.pickle_npz()[:-30], GuardError),
    "overlapping NPZ": ("sa_000003_features.npz", hostile.overlapping_npz(), GuardError),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_sample_ends_the_task_and_is_named(tmp_path, plan_of, folder, temporaries, what):
    member, data, kind = BAD[what]
    shard = spoilt(tmp_path / "src", {member: data})
    (task,) = plan_of(shard, arrays="raw").tasks()
    with pytest.raises(kind) as caught:
        pack_shard(task, folder)
    place = next(part.offset for part in task.selections[0].samples[2].parts if member.endswith(part.suffix))
    assert (caught.value.shard, caught.value.member, caught.value.offset) == (str(shard), member, place)
    assert caught.value.advice
    assert not (folder / task.name).exists()
    assert temporaries(folder) == []


@pytest.mark.parametrize("what", BAD)
def test_a_bad_sample_is_skipped_and_listed_when_told_so(tmp_path, pack_here, contents, what):
    member, data, _ = BAD[what]
    shard = spoilt(tmp_path / "src", {member: data})
    packed = pack_here(shard, tmp_path / "packed", arrays="raw", on_bad="skip")
    (report,) = packed.reports
    (line,) = report.skipped
    assert (line["shard"], line["member"]) == (str(shard), member)
    assert line["offset"] > 0
    assert line["reason"]
    assert report.samples + len(report.skipped) == packed.plan.samples == 5
    assert not any(name.startswith("sa_000003") for name, _ in contents(packed.folder))
    assert {fact.parts for fact in report.fields.values()} == {4}


def test_a_cast_that_does_not_fit_names_its_part(tmp_path, plan_of, folder):
    (shard,) = make_shards(tmp_path / "src", SA1B, samples=2, scale=0.1)
    (task,) = plan_of(shard, arrays="raw", casts=(("features", "uint8"),)).tasks()
    with pytest.raises(DecodeError, match="'features' does not fit") as caught:
        pack_shard(task, folder)
    assert caught.value.member == "sa_000001_features.npz"
    assert caught.value.offset == task.selections[0].samples[0].part("_features.npz").offset


def test_a_shard_of_bad_samples_only_is_empty_but_there(tmp_path, pack_here):
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([("1.jpg", b"no"), ("2.jpg", b"neither")]))
    packed = pack_here(shard, tmp_path / "packed", on_bad="skip")
    (report,) = packed.reports
    assert (report.samples, len(report.skipped)) == (0, 2)
    (task,) = packed.plan.tasks()
    assert finished_report(task, packed.folder) == report


def test_two_parts_with_one_future_name_are_a_bad_sample(tmp_path, plan_of, folder):
    shard = tmp_path / "a.tar"
    members = [(f"{key}{end}.txt", b"x") for key in "abc" for end in ("", "_note", ".note")]
    shard.write_bytes(tar_bytes(members))
    (task,) = plan_of(shard).tasks()
    with pytest.raises(SampleError, match=r"'\.note\.txt'") as caught:
        pack_shard(task, folder)
    assert (caught.value.shard, caught.value.member) == (str(shard), "a.txt")
