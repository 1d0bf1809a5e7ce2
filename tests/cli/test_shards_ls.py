import pytest

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


def test_ls_lists_ignored_members_and_joined_names(in_process, tmp_path):
    names = [f"{number}{suffix}" for number in range(3) for suffix in (".jpg", "_edge.npz")]
    names += [".DS_Store", "a/._0.jpg", "b/._0.jpg", "README", "images/"]
    (tmp_path / "x.tar").write_bytes(tar_bytes([(name, b"1") for name in names]))
    ran = in_process("shards", "ls", tmp_path)
    assert ran.code == 0
    assert "ignored, macOS metadata: 3 (.DS_Store, a/._0.jpg, b/._0.jpg)" in ran.out
    assert "ignored, no extension: 1 (README)" in ran.out
    assert "ignored, directory: 1 (images/)" in ran.out
    assert "joined: 3 members in _edge.npz are read as parts of the sample that their name begins with" in ran.out
    facts = in_process("shards", "ls", tmp_path, "--json", "--require", ".jpg", "--require", "_edge.npz").json
    assert facts["joined"] == {}
    assert len(facts["shards"][0]["ignored"]) == 5


def test_ls_and_check_accept_one_of_several_suffixes(in_process, tmp_path):
    names = ["0.JPEG", "0.cls", "1.png", "1.cls", "2.gif", "2.cls"]
    (tmp_path / "x.tar").write_bytes(tar_bytes([(name, b"1") for name in names]))
    for command in ("ls", "check"):
        ran = in_process("shards", command, tmp_path / "x.tar", "--require", ".jpg|.png", "--require", ".cls")
        assert ran.code == 1
        assert in_process("shards", command, tmp_path / "x.tar", "--require", ".jpg|.png|.gif").code == 0
    assert "sample has no .jpg or .png" in ran.out


def test_ls_and_check_agree_on_an_empty_tar(in_process, tmp_path):
    (tmp_path / "x.tar").write_bytes(tar_bytes([]))
    for command in ("ls", "check"):
        ran = in_process("shards", command, tmp_path / "x.tar")
        assert ran.code == 0
        assert "no samples" in ran.out
    (tmp_path / "x.tar").write_bytes(b"")
    for command in ("ls", "check"):
        ran = in_process("shards", command, tmp_path / "x.tar")
        assert ran.code == 1
        assert "is empty (0 bytes)" in ran.out


@pytest.mark.parametrize("command", ["ls", "check", "pack"])
def test_no_terminal_escape_of_a_member_reaches_the_terminal(in_process, tmp_path, command):
    odd = "\x1b[31m\x9b1m\u202e"
    names = [f"0{odd}.{odd}", f"1{odd}.jpg", f"._{odd}", f"{odd}/", f"2.jpg{odd}", f"[bold]{odd}.jpg"]
    (tmp_path / "x.tar").write_bytes(tar_bytes([(name, b"1") for name in names]))
    ran = in_process("shards", command, tmp_path / "x.tar", *([tmp_path / "out"] if command == "pack" else []))
    assert ran.out or ran.err
    assert not any(character in ran.out + ran.err for character in odd if not character.isprintable())
