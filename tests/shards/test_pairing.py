import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shards.pairing import canonical_suffix, split_at_dot, split_names


def pairs(names, suffixes=None):
    """Return (key, suffix) of each name."""
    split = split_names(names, suffixes)
    return [
        (split.keys[key], split.suffixes[suffix]) for key, suffix in zip(split.key_ids, split.suffix_ids, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "key", "suffix"),
    [
        ("0001.jpg", "0001", ".jpg"),
        ("0001.seg.png", "0001", ".seg.png"),
        ("a/b/0001.jpg", "a/b/0001", ".jpg"),
        ("v1.2/0001.jpg", "v1.2/0001", ".jpg"),
        ("v1.2/b.c/0001.seg.png", "v1.2/b.c/0001", ".seg.png"),
        ("./0001.jpg", "./0001", ".jpg"),
        ("../0001.jpg", "../0001", ".jpg"),
        ("v1.2/README", "v1.2/README", ""),
        ("README", "README", ""),
        (".hidden", "", ".hidden"),
        ("a/.hidden", "a/", ".hidden"),
        ("a.", "a", "."),
        ("", "", ""),
        ("картина.jpg", "картина", ".jpg"),
    ],
)
def test_a_name_splits_at_the_first_dot_of_its_last_component(name, key, suffix):
    assert split_at_dot(name) == (key, suffix)
    assert pairs([name]) == [(key, suffix)]
    assert pairs([name, "x/y.jpg", "z.jpg"])[0] == (key, suffix)


def test_keys_and_suffixes_are_numbered_in_order_of_appearance():
    split = split_names(["b.jpg", "a.jpg", "b.txt", "a.txt", "b.jpg"])
    assert (split.keys, split.suffixes) == (["b", "a"], [".jpg", ".txt"])
    assert split.key_ids.tolist() == [0, 1, 0, 1, 0]
    assert split.suffix_ids.tolist() == [0, 0, 1, 1, 0]


def test_no_names_make_an_empty_split():
    split = split_names([])
    assert (split.keys, split.suffixes, len(split.key_ids), len(split.suffix_ids)) == ([], [], 0, 0)


def test_a_word_after_the_stem_joins_the_part_to_its_partner():
    assert pairs(["0001.jpg", "0001_features.npz", "0002.jpg", "0002_features.npz"]) == [
        ("0001", ".jpg"),
        ("0001", "_features.npz"),
        ("0002", ".jpg"),
        ("0002", "_features.npz"),
    ]


@pytest.mark.parametrize("folder", ["", "a/", "v1.2/b/", "./"])
def test_joining_works_in_folders_and_with_underscores_in_keys(folder):
    names = [f"{folder}sa_{number:06d}{suffix}" for number in range(9) for suffix in (".jpg", "_features.npz")]
    expected = [(f"{folder}sa_{number:06d}", suffix) for number in range(9) for suffix in (".jpg", "_features.npz")]
    assert pairs(names) == expected


def test_an_orphan_with_a_joining_word_is_split_like_the_others():
    names = ["0.jpg", "0_features.npz", "1.jpg", "1_features.npz", "2_features.npz"]
    assert pairs(names)[-1] == ("2", "_features.npz")


def test_a_joined_key_that_exists_only_as_an_orphan_is_shared_by_all_its_parts():
    names = ["0.jpg", "0_a.npz", "1.jpg", "1_a.npz", "2_a.npz", "2_a.json"]
    assert pairs(names)[-2:] == [("2", "_a.npz"), ("2", "_a.json")]


def test_several_words_join_one_key():
    names = [f"{number}{suffix}" for number in range(4) for suffix in (".jpg", "_features.npz", "_edge.npz")]
    assert {suffix for _, suffix in pairs(names)} == {".jpg", "_features.npz", "_edge.npz"}
    assert {key for key, _ in pairs(names)} == {"0", "1", "2", "3"}


def test_a_suffix_may_have_several_words():
    suffixes = (".npz", "_front.jpg", "_front_left.jpg", "_front_left_mask.png")
    names = [f"{number}{suffix}" for number in range(3) for suffix in suffixes]
    assert pairs(names) == [(str(number), suffix) for number in range(3) for suffix in suffixes]


def test_a_chain_of_thousands_of_words_is_resolved():
    names = ["a" + "_b" * length + ".jpg" for length in range(3000)]
    assert {key for key, _ in pairs(names)} == {"a"}


def test_a_folder_name_is_not_a_word():
    names = ["train.json", "train_set/0.jpg", "train_set/1.jpg"]
    assert [key for key, _ in pairs(names)] == ["train", "train_set/0", "train_set/1"]


def test_the_joined_suffix_keeps_everything_after_the_first_dot():
    assert pairs(["0.jpg", "0_mask.seg.png"])[1] == ("0", "_mask.seg.png")


def test_numbers_never_join():
    names = ["scene.json", "scene_0001.jpg", "scene_0002.jpg", "2.jpg", "2_2.jpg", "2_٣.jpg"]
    assert [key for key, _ in pairs(names)] == ["scene", "scene_0001", "scene_0002", "2", "2_2", "2_٣"]


def test_a_word_without_partners_mostly_does_not_join():
    names = ["cat.jpg", "cat_big.jpg", "dog_big.jpg", "cow_big.jpg"]
    assert [key for key, _ in pairs(names)] == ["cat", "cat_big", "dog_big", "cow_big"]


def test_half_of_the_stems_are_not_most_of_them():
    assert [key for key, _ in pairs(["cat.jpg", "cat_big.jpg", "dog_big.jpg"])] == ["cat", "cat_big", "dog_big"]


def test_an_underscore_at_the_start_or_end_is_not_a_word():
    names = ["_features.npz", "0_.npz", "0.jpg", "__.jpg", "_.jpg"]
    assert [key for key, _ in pairs(names)] == ["_features", "0_", "0", "__", "_"]


def test_stated_suffixes_decide_and_nothing_is_inferred():
    names = ["0.jpg", "0_features.npz", "0_edge.npz"]
    assert pairs(names, [".jpg", "_features.npz"]) == [("0", ".jpg"), ("0", "_features.npz"), ("0_edge", ".npz")]


def test_stated_suffixes_can_join_parts_that_would_not_be_inferred():
    names = ["cat.jpg", "cat_big.jpg", "dog_big.jpg", "cow_big.jpg", "a.b.jpg"]
    assert pairs(names, [".jpg", "_big.jpg"]) == [
        ("cat", ".jpg"),
        ("cat", "_big.jpg"),
        ("dog", "_big.jpg"),
        ("cow", "_big.jpg"),
        ("a.b", ".jpg"),
    ]


@pytest.mark.parametrize("suffixes", list(itertools.permutations([".png", ".seg.png", "_x.seg.png"])))
def test_the_longest_of_several_stated_suffixes_is_used(suffixes):
    names = ["0.png", "0.seg.png", "0_x.seg.png"]
    assert pairs(names, suffixes) == [("0", ".png"), ("0", ".seg.png"), ("0", "_x.seg.png")]


@pytest.mark.parametrize(
    ("suffix", "canonical"),
    [
        (".jpg", ".jpg"),
        (".JPG", ".jpg"),
        (".jpeg", ".jpg"),
        (".JPEG", ".jpg"),
        (".front.jpeg", ".front.jpg"),
        ("_left.Jpeg", "_left.jpg"),
        (".npz", ".npz"),
        (".xjpeg", ".xjpeg"),
        ("", ""),
    ],
)
def test_spellings_of_one_suffix_have_one_canonical_form(suffix, canonical):
    assert canonical_suffix(suffix) == canonical


PIECES = st.sampled_from(["a", "b", "1", "_", ".", "/", "_mask", "_features", ".jpg", ".npz"])


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), max_size=30), st.booleans())
def test_key_and_suffix_always_join_to_the_name(names, stated):
    split = pairs(names, ["_mask.npz", ".jpg"] if stated else None)
    assert [key + suffix for key, suffix in split] == names


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), max_size=30))
def test_tables_hold_distinct_strings_that_are_all_used(names):
    split = split_names(names)
    for table, ids in ((split.keys, split.key_ids), (split.suffixes, split.suffix_ids)):
        assert len(set(table)) == len(table)
        assert sorted(set(ids.tolist())) == list(range(len(table)))
    assert list(dict.fromkeys(split.key_ids.tolist())) == list(range(len(split.keys)))


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=12, unique=True), st.randoms())
def test_the_order_of_the_members_does_not_change_the_pairs(names, rng):
    shuffled = list(names)
    rng.shuffle(shuffled)
    assert sorted(pairs(shuffled)) == sorted(pairs(names))
