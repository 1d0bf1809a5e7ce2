"""Which samples are whole. Never half a sample."""

import pytest

from penstock.errors import PairingError, SettingError
from penstock.shards import validate as health
from penstock.shards.index import IndexBinding, OpenedShard, build_index
from penstock.shards.scan import scan_shard
from penstock.shards.tar import TarMembers
from penstock.shards.validate import ShardProblem, check_samples, complete_samples
from penstock.testing import tar_bytes


def index_of(*names, empty=(), notes=()):
    """An index of these members; the data of member i starts at 1024 * i + 512."""
    offsets = [512 + 1024 * at for at in range(len(names))]
    lengths = [0 if name in empty else 100 for name in names]
    size = 1024 * len(names) + 1024
    return build_index(
        TarMembers(list(names), offsets, lengths, list(notes)), OpenedShard(IndexBinding(size, 0), None, size)
    )


def whole_keys(index, **settings):
    verdict = check_samples(index, **settings)
    assert verdict.bad == len(index) - int(verdict.complete.sum())
    return [key for key, whole in zip(index.keys, verdict.complete, strict=True) if whole]


PAIRS = [f"{number}{suffix}" for number in range(5) for suffix in (".jpg", ".npz")]


def test_whole_samples_have_no_problems():
    verdict = check_samples(index_of(*PAIRS))
    assert verdict.complete.all()
    assert (verdict.expected, verdict.problems, verdict.bad) == ((".jpg", ".npz"), [], 0)


def test_interleaved_parts_never_give_half_samples(tmp_path):
    """webdataset and DALI emit four half samples here."""
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
    assert whole_keys(index) == ["0", "1", "2", "3"]


def test_an_orphan_is_listed_with_member_offset_and_what_it_lacks():
    index = index_of(*PAIRS, "5.jpg")
    verdict = check_samples(index)
    assert verdict.problems == [ShardProblem("orphan", "5.jpg", 10 * 1024 + 512, "sample has no .npz")]
    assert whole_keys(index) == ["0", "1", "2", "3", "4"]


def test_an_orphan_of_the_joined_kind_lacks_its_picture():
    names = [f"{number}{suffix}" for number in range(5) for suffix in (".jpg", "_features.npz")]
    verdict = check_samples(index_of("x_features.npz", *names))
    assert verdict.problems == [ShardProblem("orphan", "x_features.npz", 512, "sample has no .jpg")]


def test_a_sample_with_some_of_its_parts_is_incomplete():
    names = [f"{number}{suffix}" for number in range(5) for suffix in (".jpg", ".npz", ".json", ".txt")]
    verdict = check_samples(index_of(*names, "x.jpg", "x.json"))
    assert verdict.problems == [ShardProblem("incomplete", "x.jpg", 20 * 1024 + 512, "sample has no .npz, .txt")]


def test_a_part_that_only_few_samples_have_is_not_expected():
    index = index_of(*PAIRS, "0.extra")
    assert check_samples(index).expected == (".jpg", ".npz")
    assert whole_keys(index) == ["0", "1", "2", "3", "4"]


def test_a_duplicate_is_listed_where_it_occurs_again():
    index = index_of(*PAIRS, "3.jpg")
    assert check_samples(index).problems == [
        ShardProblem("duplicate", "3.jpg", 10 * 1024 + 512, "occurs more than once")
    ]
    assert whole_keys(index) == ["0", "1", "2", "4"]


@pytest.mark.parametrize("twin", ["3.jpeg", "3.JPG", "3.JPEG"])
def test_two_spellings_of_one_role_are_duplicates_too(twin):
    index = index_of(*PAIRS, twin)
    [problem] = check_samples(index).problems
    assert (problem.kind, problem.member) == ("duplicate", twin)
    assert whole_keys(index) == ["0", "1", "2", "4"]


def test_a_triplet_is_two_problems():
    assert [problem.kind for problem in check_samples(index_of(*PAIRS, "3.jpg", "3.jpg")).problems] == ["duplicate"] * 2


def test_mixed_spellings_of_one_role_are_all_whole():
    names = ["0.jpg", "0.npz", "1.jpeg", "1.npz", "2.JPG", "2.NPZ"]
    assert whole_keys(index_of(*names)) == ["0", "1", "2"]


def test_an_empty_member_spoils_its_sample():
    index = index_of(*PAIRS, empty=["2.npz"])
    assert check_samples(index).problems == [ShardProblem("empty", "2.npz", 5 * 1024 + 512, "has no bytes")]
    assert whole_keys(index) == ["0", "1", "3", "4"]


def test_strays_are_listed_but_spoil_nothing():
    index = index_of(*PAIRS, notes=[("link", 77, "symbolic link")])
    assert check_samples(index).problems == [ShardProblem("stray", "link", 77, "symbolic link")]
    numbers, problems = complete_samples(index, "a.tar")
    assert (len(numbers), problems) == (5, [])


# -- required suffixes -----------------------------------------------------------------------------------------------


def test_required_suffixes_decide_what_is_whole():
    index = index_of("0.jpg", "0.npz", "1.jpg", "2.jpg")
    assert whole_keys(index) == ["0", "1", "2"]
    assert whole_keys(index, required=[".jpg", ".npz"]) == ["0"]
    assert whole_keys(index, required=[".jpg"]) == ["0", "1", "2"]


def test_a_required_suffix_that_no_sample_has_leaves_none():
    index = index_of(*PAIRS)
    verdict = check_samples(index, [".jpg", ".txt"])
    assert verdict.bad == 5
    assert {problem.reason for problem in verdict.problems} == {"sample has no .txt"}


def test_required_suffixes_are_roles():
    index = index_of("0.jpeg", "1.JPG", "2.jpg")
    assert check_samples(index, [".jpeg", ".jpg"]).expected == (".jpg",)
    assert whole_keys(index, required=[".jpeg"]) == ["0", "1", "2"]


def test_an_empty_required_suffix_is_refused():
    with pytest.raises(SettingError, match="empty"):
        check_samples(index_of(*PAIRS), [".jpg", ""])


def test_a_shard_without_samples_has_no_problems():
    for required in (None, [".jpg"]):
        verdict = check_samples(index_of(), required)
        assert (len(verdict.complete), verdict.problems, verdict.bad) == (0, [], 0)


# -- the two policies ------------------------------------------------------------------------------------------------


def test_the_raise_policy_names_shard_member_and_offset_and_counts_the_rest():
    index = index_of(*PAIRS, "5.jpg", "6.jpg", "7.npz")
    with pytest.raises(PairingError) as caught:
        complete_samples(index, "a.tar")
    error = caught.value
    assert error.where() == {"shard": "a.tar", "member": "5.jpg", "offset": 10 * 1024 + 512, "stage": "pair"}
    assert error.reason == "orphan part: sample has no .npz, and 2 more problems"
    assert "on_bad='skip'" in error.advice


@pytest.mark.parametrize(
    ("names", "empty", "kind"),
    [(["5.jpg"], [], "orphan"), (["3.jpg"], [], "duplicate"), ([], ["3.jpg"], "empty")],
)
def test_the_raise_policy_raises_on_every_kind(names, empty, kind):
    with pytest.raises(PairingError, match=f"^{kind} part: [^,]*\\["):
        complete_samples(index_of(*PAIRS, *names, empty=empty), "a.tar")


def test_the_skip_policy_returns_the_whole_ones_and_lists_the_others():
    index = index_of(*PAIRS, "5.jpg", "3.jpg", "6.npz", empty=["0.jpg"])
    numbers, problems = complete_samples(index, "a.tar", on_bad="skip")
    assert [index.keys[number] for number in numbers] == ["1", "2", "4"]
    assert sorted((problem.kind, problem.member) for problem in problems) == [
        ("duplicate", "3.jpg"),
        ("empty", "0.jpg"),
        ("orphan", "5.jpg"),
        ("orphan", "6.npz"),
    ]


def test_the_list_of_problems_ends_but_the_count_goes_on(monkeypatch):
    monkeypatch.setattr(health, "MAX_LISTED", 10)
    orphans = [f"x{number}.npz" for number in range(100)]
    pairs = [f"{number}{suffix}" for number in range(200) for suffix in (".jpg", ".npz")]
    verdict = check_samples(index_of(*pairs, *orphans))
    assert (len(verdict.problems), verdict.bad) == (10, 100)


def test_a_part_that_half_of_the_samples_have_is_missed_in_the_others():
    verdict = check_samples(index_of("0.jpg", "0.npz", "1.jpg"))
    assert verdict.complete.tolist() == [True, False]
    assert [problem.kind for problem in verdict.problems] == ["orphan"]


def test_an_empty_part_that_nobody_asked_for_spoils_nothing():
    index = index_of("0.jpg", "0.txt", "1.jpg", "1.txt", empty=("0.txt",))
    assert whole_keys(index) == ["1"]
    assert whole_keys(index, required=[".jpg"]) == ["0", "1"]
