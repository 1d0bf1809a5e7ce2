from penstock.testing import REID, SA1B, make_shards, sample_parts, tar_bytes


def test_ls_sums_samples_parts_and_codecs(penstock, tmp_path):
    make_shards(tmp_path, SA1B, samples=6, shards=2, order="grouped", scale=0.05)
    ran = penstock("shards", "ls", tmp_path)
    assert ran.code == 0
    assert "6 samples, 6 of them whole" in ran.out
    assert "_features.npz" in ran.out
    assert "jpeg" in ran.out


def test_ls_json_has_the_same_facts(in_process, tmp_path):
    make_shards(tmp_path, REID, samples=5, shards=1, scale=0.5)
    facts = in_process("shards", "ls", "--json", tmp_path).json
    assert facts["samples"] == facts["whole"] == 5
    assert facts["parts"][".jpg"]["count"] == 5
    assert facts["parts"][".json"]["codec"] == "json"
    assert [shard["samples"] for shard in facts["shards"]] == [5]


def test_ls_names_orphans_and_exits_1(in_process, tmp_path):
    parts = sample_parts(SA1B, 0, scale=0.05)
    members = [(f"{key}{suffix}", data) for key in ("a", "b", "c") for suffix, data in parts.items()]
    (tmp_path / "orphan.tar").write_bytes(tar_bytes([*members, ("d.jpg", parts[".jpg"])]))
    ran = in_process("shards", "ls", tmp_path)
    assert ran.code == 1
    assert "1 orphan" in ran.out
    assert "4 samples, 3 of them whole" in ran.out


def test_ls_with_required_suffix_counts_what_lacks_it(in_process, tmp_path):
    make_shards(tmp_path, REID, samples=3, shards=1, scale=0.5)
    ran = in_process("shards", "ls", tmp_path, "--require", ".jpg", "--require", ".mask.png", "--json")
    assert ran.code == 1
    assert ran.json["whole"] == 0


def test_ls_continues_after_an_unreadable_shard(in_process, tmp_path):
    make_shards(tmp_path, REID, samples=3, shards=1, scale=0.5)
    (tmp_path / "broken.tar").write_bytes(b"<!DOCTYPE html><html>403</html>" + bytes(600))
    ran = in_process("shards", "ls", tmp_path, "--json")
    assert ran.code == 1
    assert ran.json["samples"] == 3
    assert "web page" in ran.json["unreadable"][0]["reason"]


def test_ls_keeps_terminal_escapes_in_names_out_of_the_terminal(in_process, tmp_path):
    (tmp_path / "x.tar").write_bytes(tar_bytes([("a.\x1b[31mred", b"1"), ("a.[bold]b", b"1")]))
    ran = in_process("shards", "ls", tmp_path)
    assert "\x1b[31m" not in ran.out
    assert ".[bold]b" in ran.out
