import numpy as np
import pytest

from penstock.errors import PairingError, SettingError
from penstock.shards.index import IndexBinding, OpenedShard, build_index
from penstock.shards.scan import scan_shard
from penstock.shards.tar import TarMembers
from penstock.shards.validate import ShardProblem, check_samples, complete_samples
from penstock.testing import tar_bytes


def index_of(*names, empty=(), others=(), unreadable=()):
    """Return an index of these members; the data of member i starts at 1024 * i + 512."""
    offsets = [512 + 1024 * number for number in range(len(names))]
    lengths = [0 if name in empty else 100 for name in names]
    size = 1024 * len(names) + 1024
    reasons = {offsets[names.index(name)]: reason for name, reason in dict(unreadable).items()}
    members = TarMembers(list(names), offsets, lengths, list(others), reasons)
    return build_index(members, OpenedShard(IndexBinding(size, 0), None, size))


def complete_keys(index, **settings):
    health = check_samples(index, **settings)
    assert health.bad == len(index) - int(health.complete.sum())
    return [key for key, complete in zip(index.keys, health.complete, strict=True) if complete]


PAIRS = [f"{number}{suffix}" for number in range(5) for suffix in (".jpg", ".npz")]


def test_complete_samples_have_no_problems():
    health = check_samples(index_of(*PAIRS))
    assert health.complete.all()
    assert (health.expected, health.problems, health.bad) == ((".jpg", ".npz"), [], 0)


def test_interleaved_parts_give_no_partial_samples(tmp_path):
    """webdataset and DALI return four partial samples here."""
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("0.jpg", b"a"), ("1.jpg", b"b"), ("0.npz", b"c"), ("1.npz", b"d")]))
    index = scan_shard(path)
    numbers, problems = complete_samples(index, str(path), required=[".jpg", ".npz"])
    assert problems == []
    assert [(index.keys[number], len(index.sample(number).parts)) for number in numbers] == [("0", 2), ("1", 2)]


def test_cameras_named_by_several_words_are_parts_of_one_sample():
    index = index_of(
        *(f"{number}{suffix}" for number in range(4) for suffix in (".npz", "_front.jpg", "_front_left.jpg"))
    )
    assert check_samples(index).expected == (".npz", "_front.jpg", "_front_left.jpg")
    assert complete_keys(index) == ["0", "1", "2", "3"]


def test_an_orphan_is_listed_with_member_offset_and_the_missing_part():
    index = index_of(*PAIRS, "5.jpg")
    health = check_samples(index)
    assert health.problems == [ShardProblem("orphan", "5.jpg", 10 * 1024 + 512, "sample has no .npz", 5)]
    assert complete_keys(index) == ["0", "1", "2", "3", "4"]


def test_an_orphan_with_a_joining_word_lacks_its_image():
    names = [f"{number}{suffix}" for number in range(5) for suffix in (".jpg", "_features.npz")]
    health = check_samples(index_of("x_features.npz", *names))
    assert health.problems == [ShardProblem("orphan", "x_features.npz", 512, "sample has no .jpg", 0)]


def test_a_sample_with_some_of_its_parts_is_incomplete():
    names = [f"{number}{suffix}" for number in range(5) for suffix in (".jpg", ".npz", ".json", ".txt")]
    health = check_samples(index_of(*names, "x.jpg", "x.json"))
    assert health.problems == [ShardProblem("incomplete", "x.jpg", 20 * 1024 + 512, "sample has no .npz, .txt", 5)]


def test_a_part_that_only_few_samples_have_is_not_expected():
    index = index_of(*PAIRS, "0.extra")
    assert check_samples(index).expected == (".jpg", ".npz")
    assert complete_keys(index) == ["0", "1", "2", "3", "4"]


def test_a_duplicate_is_listed_at_its_second_occurrence():
    index = index_of(*PAIRS, "3.jpg")
    assert check_samples(index).problems == [
        ShardProblem("duplicate", "3.jpg", 10 * 1024 + 512, "occurs more than once", 3)
    ]
    assert complete_keys(index) == ["0", "1", "2", "4"]


@pytest.mark.parametrize("duplicate", ["3.jpeg", "3.JPG", "3.JPEG"])
def test_two_spellings_of_one_suffix_are_duplicates(duplicate):
    index = index_of(*PAIRS, duplicate)
    [problem] = check_samples(index).problems
    assert (problem.kind, problem.member) == ("duplicate", duplicate)
    assert complete_keys(index) == ["0", "1", "2", "4"]


def test_a_part_that_occurs_three_times_is_two_problems():
    assert [problem.kind for problem in check_samples(index_of(*PAIRS, "3.jpg", "3.jpg")).problems] == ["duplicate"] * 2


def test_samples_with_different_spellings_of_one_suffix_are_complete():
    names = ["0.jpg", "0.npz", "1.jpeg", "1.npz", "2.JPG", "2.NPZ"]
    assert complete_keys(index_of(*names)) == ["0", "1", "2"]


def test_an_empty_member_makes_its_sample_bad():
    index = index_of(*PAIRS, empty=["2.npz"])
    assert check_samples(index).problems == [ShardProblem("empty", "2.npz", 5 * 1024 + 512, "has no bytes", 2)]
    assert complete_keys(index) == ["0", "1", "3", "4"]


def test_stray_members_are_listed_but_make_no_sample_bad():
    index = index_of(*PAIRS, others=[("link", 77, "symbolic link")])
    assert check_samples(index).problems == [ShardProblem("stray", "link", 77, "symbolic link")]
    numbers, problems = complete_samples(index, "a.tar")
    assert (len(numbers), problems) == (5, [])


# -- required suffixes ---------------------------------------------------------------------------------------------


def test_required_suffixes_decide_which_samples_are_complete():
    index = index_of("0.jpg", "0.npz", "1.jpg", "2.jpg")
    assert complete_keys(index) == ["0", "1", "2"]
    assert complete_keys(index, required=[".jpg", ".npz"]) == ["0"]
    assert complete_keys(index, required=[".jpg"]) == ["0", "1", "2"]


def test_a_required_suffix_that_no_sample_has_leaves_no_complete_sample():
    index = index_of(*PAIRS)
    health = check_samples(index, [".jpg", ".txt"])
    assert health.bad == 5
    assert {problem.reason for problem in health.problems} == {"sample has no .txt"}


def test_required_suffixes_match_other_spellings():
    index = index_of("0.jpeg", "1.JPG", "2.jpg")
    assert check_samples(index, [".jpeg", ".jpg"]).expected == (".jpg",)
    assert complete_keys(index, required=[".jpeg"]) == ["0", "1", "2"]


def test_an_empty_required_suffix_is_refused():
    with pytest.raises(SettingError, match="empty"):
        check_samples(index_of(*PAIRS), [".jpg", ""])


def test_a_shard_without_samples_has_no_problems():
    for required in (None, [".jpg"]):
        health = check_samples(index_of(), required)
        assert (len(health.complete), health.problems, health.bad) == (0, [], 0)


# -- raise and skip ------------------------------------------------------------------------------------------------


def test_raise_reports_shard_member_and_offset_and_counts_the_other_problems():
    index = index_of(*PAIRS, "5.jpg", "6.jpg", "7.npz")
    with pytest.raises(PairingError) as caught:
        complete_samples(index, "a.tar")
    error = caught.value
    assert error.where() == {"shard": "a.tar", "member": "5.jpg", "offset": 10 * 1024 + 512, "stage": "pair"}
    assert error.reason == "orphan part: sample has no .npz, and 2 more incomplete samples"
    assert "on_error='skip'" in error.advice
    assert "parts .jpg, .npz" in error.advice


@pytest.mark.parametrize(
    ("names", "empty", "kind"),
    [(["5.jpg"], [], "orphan"), (["3.jpg"], [], "duplicate"), ([], ["3.jpg"], "empty")],
)
def test_raise_applies_to_every_kind_of_problem(names, empty, kind):
    with pytest.raises(PairingError, match=f"^{kind} part: [^,]*\\["):
        complete_samples(index_of(*PAIRS, *names, empty=empty), "a.tar")


def test_skip_returns_the_complete_samples_and_lists_the_others():
    index = index_of(*PAIRS, "5.jpg", "3.jpg", "6.npz", empty=["0.jpg"])
    numbers, problems = complete_samples(index, "a.tar", on_bad="skip")
    assert [index.keys[number] for number in numbers] == ["1", "2", "4"]
    assert sorted((problem.kind, problem.member) for problem in problems) == [
        ("duplicate", "3.jpg"),
        ("empty", "0.jpg"),
        ("orphan", "5.jpg"),
        ("orphan", "6.npz"),
    ]


def test_every_incomplete_sample_is_listed_once_however_many_there_are():
    orphans = [f"x{number}.npz" for number in range(12_000)]
    pairs = [f"{number}{suffix}" for number in range(12_001) for suffix in (".jpg", ".npz")]
    health = check_samples(index_of(*pairs, *orphans))
    numbers = [number for number, _ in health.incomplete()]
    assert numbers == np.flatnonzero(~health.complete).tolist()
    assert len(numbers) == health.bad == 12_000


def test_a_sample_with_several_problems_is_listed_once():
    index = index_of("0.jpg", "0.npz", "1.jpg", "1.jpg", "1.txt", "2.jpg", "2.npz", empty=["1.txt", "1.jpg"])
    health = check_samples(index)
    assert len(health.problems) > 2
    assert [(number, problem.reason) for number, problem in health.incomplete()] == [(1, "sample has no .npz")]
    assert len(complete_samples(index, "a.tar", on_bad="skip")[1]) == 1


def test_the_error_names_the_suffixes_that_the_shard_has_and_how_to_skip():
    index = index_of(*(f"{number}{suffix}" for number in range(3) for suffix in (".jpg", "_features.npz")))
    with pytest.raises(PairingError) as caught:
        complete_samples(index.paired_by([".npz"]), "a.tar", [".npz"])
    assert caught.value.reason == "incomplete part: sample has no .npz, and 2 more incomplete samples"
    assert "parts .jpg, _features.npz" in caught.value.advice
    with pytest.raises(PairingError, match="--on-bad skip"):
        complete_samples(index, "a.tar", [".npz"], skip_with="--on-bad skip")


def test_only_the_most_frequent_suffixes_are_named():
    index = index_of(*PAIRS, *(f"x{number}.kind{number}" for number in range(30)))
    with pytest.raises(PairingError, match=r"has parts \.jpg, \.npz, [^a]* and 20 more\."):
        complete_samples(index, "a.tar", [".txt"])


def test_names_in_an_error_are_printable():
    with pytest.raises(PairingError) as caught:
        complete_samples(index_of("0.\x1b[31mred", "1.\x1b[31mred"), "a.tar", [".jpg"])
    assert str(caught.value).isprintable()


def test_a_part_that_half_of_the_samples_have_is_expected_in_the_others():
    health = check_samples(index_of("0.jpg", "0.npz", "1.jpg"))
    assert health.complete.tolist() == [True, False]
    assert [problem.kind for problem in health.problems] == ["orphan"]


def test_an_empty_part_that_is_not_required_makes_no_sample_bad():
    index = index_of("0.jpg", "0.txt", "1.jpg", "1.txt", empty=("0.txt",))
    assert complete_keys(index) == ["1"]
    assert complete_keys(index, required=[".jpg"]) == ["0", "1"]


# -- unreadable and optional parts, ignored members ----------------------------------------------------------------


def test_an_unreadable_part_costs_its_sample_only():
    index = index_of(*PAIRS, empty=["1.npz"], unreadable={"1.npz": "is a GNU sparse file"})
    assert check_samples(index).problems == [
        ShardProblem("unreadable", "1.npz", 3 * 1024 + 512, "is a GNU sparse file", 1)
    ]
    assert complete_keys(index) == ["0", "2", "3", "4"]
    assert complete_keys(index, required=[".jpg"]) == ["0", "1", "2", "3", "4"]
    assert index.sample(1).parts[1].unreadable == "is a GNU sparse file"
    assert index.sample(2).parts[1].unreadable is None


@pytest.mark.parametrize(("more", "empty", "kind"), [(["2.npz"], [], "duplicate"), ([], ["2.npz"], "empty")])
def test_a_sample_may_lack_an_optional_part_but_not_have_a_bad_one(more, empty, kind):
    index = index_of(*PAIRS, "5.jpg", *more, empty=empty)
    health = check_samples(index, [".jpg"], [".npz"])
    assert [(number, problem.kind) for number, problem in health.incomplete()] == [(2, kind)]
    assert check_samples(index, [".jpg"]).bad == 0
    numbers, _ = complete_samples(index, "a.tar", [".jpg"], "skip", optional=[".npz"])
    assert numbers.tolist() == [0, 1, 3, 4, 5]


def test_ignored_members_are_no_problems():
    names = ["__MACOSX/._0.jpg", ".DS_Store", "Thumbs.db", "README", "images/"]
    index = index_of(*PAIRS, *names, others=[("folder", 0, "ignored: directory")])
    assert check_samples(index).problems == []
    assert complete_keys(index) == ["0", "1", "2", "3", "4"]
    assert {name for name, _, _ in index.other_members} == {*names, "folder"}


def test_a_required_part_may_be_one_of_several():
    index = index_of("0.JPEG", "0.cls", "1.png", "1.cls", "2.gif", "2.cls")
    for part in (".jpg|.png", (".jpg", ".png")):
        assert complete_keys(index, required=[part, ".cls"]) == ["0", "1"]
        assert check_samples(index, [part]).expected == (".jpg or .png",)
