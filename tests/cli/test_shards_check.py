import json
import os
import shutil

from penstock.testing import SA1B, corrupt, make_shards, sample_parts, tar_bytes


def test_check_of_good_shards_exits_0_and_writes_no_quarantine(penstock, tmp_path):
    make_shards(tmp_path, SA1B, samples=4, shards=2, order="interleaved", scale=0.05)
    ran = penstock("shards", "check", "--decode", tmp_path)
    assert ran.code == 0
    assert "4 samples checked: no flaws" in ran.out
    assert not (tmp_path / "quarantine.jsonl").exists()


def test_check_lists_flaws_with_shard_member_and_offset(in_process, tmp_path):
    parts = sample_parts(SA1B, 0, scale=0.05)
    broken = corrupt.truncate(parts[".jpg"], len(parts[".jpg"]) // 2)
    members = [("a.jpg", parts[".jpg"]), ("a_features.npz", parts["_features.npz"])]
    members += [("b.jpg", broken), ("b_features.npz", parts["_features.npz"])]
    shard = tmp_path / "one.tar"
    shard.write_bytes(tar_bytes(members))
    ran = in_process("shards", "check", "--decode", shard, "--quarantine", tmp_path / "bad.jsonl")
    assert ran.code == 1
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    flaw = json.loads(line)
    assert (flaw["shard"], flaw["member"]) == (str(shard), "b.jpg")
    assert shard.read_bytes()[flaw["offset"] :].startswith(broken)


def test_check_json_counts_what_was_checked(in_process, tmp_path):
    make_shards(tmp_path, SA1B, samples=2, shards=1, scale=0.05)
    facts = in_process("shards", "check", "--json", tmp_path).json
    assert facts["samples"] == 2
    assert facts["flaws"] == []
    assert facts["shards"][0]["with_crc"] is False


def test_check_of_a_missing_shard_exits_with_2(in_process):
    assert in_process("shards", "check", "none.tar").code == 2


def test_check_of_copied_shards_notes_the_outdated_index_and_exits_0(in_process, tmp_path):
    make_shards(tmp_path / "src", SA1B, samples=4, shards=1, scale=0.05)
    assert in_process("shards", "pack", tmp_path / "src", tmp_path / "packed").code == 0
    shutil.copytree(tmp_path / "packed", tmp_path / "copy", copy_function=shutil.copyfile)
    [shard] = (tmp_path / "copy").glob("*.tar")
    os.utime(shard, ns=(0, 0))
    ran = in_process("shards", "check", tmp_path / "copy")
    assert ran.code == 0
    assert "note: the shard was copied or changed since it was indexed" in ran.out
    assert "4 samples checked: no flaws" in ran.out
    assert "note:" not in in_process("shards", "check", tmp_path / "copy").out
