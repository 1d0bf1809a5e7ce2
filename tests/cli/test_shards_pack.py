import json
import tarfile

import pytest
from tests.support.record_files import (
    CLASSES,
    ending,
    labelled_images,
    write_class_folders,
    write_hugging_face,
    write_samples,
    write_tfrecord,
)

from penstock.cli.shards.pack import _parse_columns
from penstock.testing import SA1B, make_folder, make_shards, tar_bytes


def test_pack_writes_loose_files_into_shards(penstock, tmp_path):
    make_folder(tmp_path / "loose", SA1B, samples=4, scale=0.05)
    ran = penstock("shards", "pack", "loose", "packed", "--arrays", "raw", "--image-size", "64", "--json")
    assert ran.code == 0
    assert ran.json["samples"] == 4
    manifest = json.loads((tmp_path / "packed" / "manifest.json").read_text())
    assert manifest["samples"] == 4
    assert set(manifest["fields"]) == {".jpg", ".features.features.npy", ".features.edge.npy"}
    assert max(manifest["fields"][".jpg"]["shape"]) == 64
    with tarfile.open(tmp_path / "packed" / "shard-000000.tar") as tar:
        assert len(tar.getnames()) == 12
    assert penstock("shards", "check", "--decode", "packed").code == 0


def test_pack_auto_measures_and_gives_the_reason(in_process, tmp_path):
    make_shards(tmp_path / "src", SA1B, samples=4, shards=1, scale=0.05)
    ran = in_process("shards", "pack", "src", "packed")
    assert ran.code == 0
    assert "storage gives" in ran.out
    assert "is the limit" in " ".join(ran.out.split())
    again = in_process("shards", "pack", "src", "packed")
    assert "as this pack began" in again.out


def test_dry_run_writes_nothing(in_process, tmp_path):
    make_shards(tmp_path / "src", SA1B, samples=4, shards=1, scale=0.05)
    ran = in_process("shards", "pack", "src", "packed", "--arrays", "zstd", "--dry-run", "--json")
    assert ran.code == 0
    assert ran.json["samples"] == 4
    assert ran.json["bytes_out_estimate"] > 0
    assert not (tmp_path / "packed").exists()


def test_bad_samples_are_skipped_counted_and_listed_if_requested(in_process, tmp_path):
    folder = make_folder(tmp_path / "loose", SA1B, samples=4, scale=0.05)
    broken = sorted(folder.rglob("*.jpg"))[1]
    broken.write_bytes(broken.read_bytes()[:200])
    refused = in_process("shards", "pack", "loose", "packed", "--arrays", "raw")
    assert refused.code == 3
    assert broken.stem in refused.err
    ran = in_process("shards", "pack", "loose", "packed2", "--arrays", "raw", "--on-error", "skip")
    assert ran.code == 1
    (line,) = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["member"] == broken.name


def test_an_invalid_cast_exits_with_2(in_process, tmp_path):
    make_folder(tmp_path / "loose", SA1B, samples=2, scale=0.05)
    for cast in ("features", "features=colour", "=float16"):
        ran = in_process("shards", "pack", "loose", "packed", "--arrays", "raw", "--cast", cast)
        assert ran.code == 2, cast
        assert "cast" in ran.err or "colour" in ran.err


def test_another_pack_in_the_folder_is_refused_until_overwrite(in_process, tmp_path):
    make_folder(tmp_path / "loose", SA1B, samples=2, scale=0.05)
    in_process("shards", "pack", "loose", "packed", "--arrays", "raw")
    refused = in_process("shards", "pack", "loose", "packed", "--arrays", "zstd")
    assert refused.code == 2
    assert "--overwrite" in refused.err
    assert in_process("shards", "pack", "loose", "packed", "--arrays", "zstd", "--overwrite").code == 0


def test_packing_into_a_bucket_is_refused_with_advice(in_process, tmp_path):
    make_shards(tmp_path / "src", SA1B, samples=4, shards=1, scale=0.05)
    ran = in_process("shards", "pack", "src", "s3://bucket/out")
    assert ran.code == 2
    assert "Pack to a disk, then upload" in " ".join(ran.err.split())


def packed_parts(folder):
    """Return the (name, data) of all members of the packed shards."""
    parts = []
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            parts += [(member.name, tar.extractfile(member).read()) for member in tar]
    return parts


def test_a_folder_of_images_per_class_is_packed_with_labels_and_says_so(in_process, tmp_path):
    samples = labelled_images(9)
    write_class_folders(tmp_path / "src", samples)
    ran = in_process("shards", "pack", "src", "packed")
    assert ran.code == 0
    assert "labels: numbers of 3 folders, listed in classes.txt: ant, bee, cat" in ran.out
    assert (tmp_path / "packed" / "classes.txt").read_text().splitlines() == CLASSES
    expected = [
        part
        for number, (image, label) in sorted(enumerate(samples), key=lambda sample: sample[1][1])
        for part in (
            (f"{CLASSES[label]}/image {number:05d}{ending(image)}", image),
            (f"{CLASSES[label]}/image {number:05d}.cls", str(label).encode()),
        )
    ]
    assert packed_parts(tmp_path / "packed") == expected


def test_a_dry_run_of_records_shows_what_each_column_becomes_and_writes_nothing(in_process, tmp_path):
    write_hugging_face(tmp_path / "a.parquet", labelled_images(10))
    ran = in_process("shards", "pack", "a.parquet", "packed", "--dry-run", "--json")
    assert ran.code == 0
    assert (ran.json["samples"], ran.json["files"]) == (10, 1)
    assert ran.json["columns"] == {"image": "", "image.path": ".json", "label": ".cls"}
    assert ran.json["classes"] == {"classes.txt": 3}
    assert 0.5 < ran.json["bytes_out_estimate"] / ran.json["bytes_in"] < 3
    assert not (tmp_path / "packed").exists()
    shown = in_process("shards", "pack", "a.parquet", "packed", "--dry-run")
    assert "source: Parquet, files: 1" in shown.out
    assert "column image: image, stored as .jpg, .png" in shown.out


def test_records_are_packed_by_workers_and_bad_ones_are_listed_with_file_and_number(penstock, tmp_path):
    samples = labelled_images(8)
    samples[5] = (b"<html>", 1)
    src = write_samples("parquet", tmp_path / "src", samples)
    refused = penstock("shards", "pack", "src", "packed")
    assert refused.code == 3
    assert "train-00001-of-00002.parquet" in refused.err
    ran = penstock("shards", "pack", "src", "packed", "--on-error", "skip", "--json")
    assert (ran.code, ran.json["samples"], ran.json["skipped"]) == (1, 7, 1)
    (line,) = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "shard": str(src.name) + "/train-00001-of-00002.parquet",
        "member": "00000001",
        "stage": "read",
        "reason": "column 'image' is no image: it begins with 3c 68 74 6d 6c 3e",
    }
    names = [name for name, _ in packed_parts(tmp_path / "packed")]
    assert names[:2] == ["train-00000-of-00002/00000000.jpg", "train-00000-of-00002/00000000.cls"]
    assert penstock("shards", "check", "--decode", "--require", ".jpg|.png", "packed").code == 0


def test_the_rest_of_a_damaged_file_is_listed(in_process, tmp_path):
    path = write_tfrecord(tmp_path / "a.tfrecord", [{"image": [image]} for image, _ in labelled_images(3)])
    path.write_bytes(path.read_bytes()[:-5])
    ran = in_process("shards", "pack", "a.tfrecord", "packed", "--on-error", "skip", "--json")
    assert (ran.code, ran.json["samples"]) == (1, 2)
    (line,) = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == "unreadable"
    assert "cut short" in json.loads(line)["reason"]


def test_columns_can_be_chosen_with_their_roles(in_process, tmp_path):
    src = write_hugging_face(tmp_path / "a.parquet", labelled_images(3))
    ran = in_process("shards", "pack", src, "packed", "--column", "image", "--column", "label=json")
    assert ran.code == 0
    names = [name for name, _ in packed_parts(tmp_path / "packed")]
    assert names[:2] == ["00000000.jpg", "00000000.json"]
    unknown = in_process("shards", "pack", src, "packed2", "--column", "imge")
    assert unknown.code == 2
    assert "There are: image, image.path, label" in " ".join(unknown.err.split())


@pytest.mark.parametrize(
    ("text", "column"),
    [("a", ("a", None)), ("a=label", ("a", "label")), ("a=b", ("a=b", None)), ("a=b=json", ("a=b", "json"))],
)
def test_the_text_behind_an_equals_sign_is_a_role_only_if_it_is_the_name_of_one(text, column):
    assert _parse_columns([text]) == (column,)


def test_an_image_that_may_be_a_mask_is_refused_until_it_is_declared(in_process, tmp_path):
    image, mask = labelled_images(3)[0][0], labelled_images(3)[2][0]
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.jpg", image), ("1.png", mask)]))
    refused = in_process("shards", "pack", "a.tar", "packed", "--image-size", "4")
    assert refused.code == 2
    assert "--mask .png" in " ".join(refused.err.split())
    assert in_process("shards", "pack", "a.tar", "packed", "--image-size", "4", "--mask", ".png").code == 0
