"""Files, folders, globs and brace ranges expand to a list of shards."""

from pathlib import Path

import pytest

from penstock.errors import SettingError
from penstock.storage.paths import MAX_EXPANDED, expand_braces, expand_shard_paths, is_shard_name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("b.tar", "a.tar", "c.tar.gz", "d.tgz", "e.TAR.ZST", "f.tar.zstd", "a.tar.pidx", ".x.tar", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "z.tar").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_expands_to_its_sorted_shards(folder):
    assert expand_shard_paths(".") == ["a.tar", "b.tar", "c.tar.gz", "d.tgz", "e.TAR.ZST", "f.tar.zstd"]


def test_path_objects_are_accepted(folder):
    assert expand_shard_paths(folder / "a.tar") == [str(folder / "a.tar")]
    assert expand_shard_paths([Path("a.tar"), "b.tar"]) == ["a.tar", "b.tar"]


def test_an_existing_file_is_accepted_whatever_its_name(folder):
    assert expand_shard_paths("notes.txt") == ["notes.txt"]


def test_a_glob_matches_only_shards(folder):
    assert expand_shard_paths("*") == ["a.tar", "b.tar", "c.tar.gz", "d.tgz", "e.TAR.ZST", "f.tar.zstd"]
    assert expand_shard_paths("a.*") == ["a.tar"]
    assert expand_shard_paths("**/z.tar") == ["deep/er/z.tar"]


def test_a_file_name_with_glob_characters_is_found(folder):
    (folder / "[1].tar").touch()
    assert expand_shard_paths("[1].tar") == ["[1].tar"]


def test_each_shard_is_returned_once_in_the_given_order(folder):
    assert expand_shard_paths(["b.tar", "*.tar", "b.tar"]) == ["b.tar", "a.tar"]


def test_a_brace_range_that_names_a_missing_shard_is_an_error(folder):
    assert expand_shard_paths("{a,b}.tar") == ["a.tar", "b.tar"]
    with pytest.raises(SettingError, match=r"no such file or folder: 'g\.tar'"):
        expand_shard_paths("{a,g}.tar")


@pytest.mark.parametrize("pattern", ["none.tar", "none*.tar", "deep", "none/"])
def test_a_pattern_that_names_no_shard_is_an_error_that_names_the_pattern(folder, pattern):
    with pytest.raises(SettingError, match=pattern.replace("*", r"\*")):
        expand_shard_paths(["a.tar", pattern])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{0..2}.tar", ["a-0.tar", "a-1.tar", "a-2.tar"]),
        ("a-{009..011}.tar", ["a-009.tar", "a-010.tar", "a-011.tar"]),
        ("a-{9..011}.tar", ["a-009.tar", "a-010.tar", "a-011.tar"]),
        ("a-{98..100}.tar", ["a-98.tar", "a-99.tar", "a-100.tar"]),
        ("a-{2..0}.tar", ["a-2.tar", "a-1.tar", "a-0.tar"]),
        ("{train,val}-{0..1}.tar", ["train-0.tar", "train-1.tar", "val-0.tar", "val-1.tar"]),
        ("a{,b}.tar", ["a.tar", "ab.tar"]),
        ("{7..7}", ["7"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern, names):
    assert list(expand_braces(pattern)) == names


@pytest.mark.parametrize("pattern", ["{0..99999999999}", "{0..1999}{0..1999}"])
def test_a_huge_range_is_refused_before_it_is_expanded(pattern):
    with pytest.raises(SettingError, match=str(MAX_EXPANDED)):
        expand_braces(pattern)


@pytest.mark.parametrize("pattern", ["a{}.tar", "a{b}.tar", "a{1..}.tar", "a{1...2}.tar", "a{-1..2}.tar"])
def test_braces_that_are_neither_range_nor_list_are_refused(pattern):
    with pytest.raises(SettingError, match="neither a range nor a list"):
        expand_braces(pattern)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.tar", True),
        ("x/A.TAR.GZ", True),
        ("a.tgz", True),
        ("a.tar.zst", True),
        ("a.tar.zstd", True),
        (".a.tar", False),
        ("x/.a.tar", False),
        (".hidden/a.tar", True),
        ("a.tar.pidx", False),
        ("a.zip", False),
        ("tar", False),
    ],
)
def test_shard_names_are_recognised(name, expected):
    assert is_shard_name(name) is expected
