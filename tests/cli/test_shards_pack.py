import json
import tarfile

from penstock.testing import SA1B, make_folder, make_shards


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
    ran = in_process("shards", "pack", "loose", "packed2", "--arrays", "raw", "--on-bad", "skip")
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
