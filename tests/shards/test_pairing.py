import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shards.pairing import (
    MAX_ROUNDS,
    alternatives,
    canonical_suffix,
    find_ignored,
    may_split_otherwise,
    split_at_dot,
    split_names,
)


def pairs(names, stated=()):
    """Return (key, suffix) of each name."""
    split = split_names(names, stated)
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
    names = ["a.txt", *("a" + "_b" * length + ".jpg" for length in range(1, 3000))]
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
    names = ["cat.jpg", "cat_big.png", "dog_big.png", "cow_big.png"]
    assert [key for key, _ in pairs(names)] == ["cat", "cat_big", "dog_big", "cow_big"]


def test_half_of_the_stems_are_not_most_of_them():
    assert [key for key, _ in pairs(["cat.jpg", "cat_big.png", "dog_big.png"])] == ["cat", "cat_big", "dog_big"]


def test_an_underscore_at_the_start_or_end_is_not_a_word():
    names = ["_features.npz", "0_.npz", "0.jpg", "__.jpg", "_.jpg"]
    assert [key for key, _ in pairs(names)] == ["_features", "0_", "0", "__", "_"]


# -- a part that could be a sample of its own ----------------------------------------------------------------------


def test_a_second_sample_named_after_the_first_is_not_swallowed():
    names = ["1.jpg", "1.cls", "1_flip.jpg", "1_flip.cls", "2.jpg", "2.cls", "2_flip.jpg", "2_flip.cls"]
    expected = [(key, suffix) for key in ("1", "1_flip", "2", "2_flip") for suffix in (".jpg", ".cls")]
    assert pairs(names) == pairs(names, [".jpg", ".cls"]) == pairs(names, [".jpg"]) == expected


def test_a_part_with_the_only_suffix_of_its_partner_is_not_joined():
    names = ["1.png", "1_mask.png", "2.PNG", "2_mask.png"]
    assert [key for key, _ in pairs(names)] == ["1", "1_mask", "2", "2_mask"]


def test_one_part_that_could_be_a_sample_keeps_its_word_from_joining_anywhere():
    names = [f"{number}{suffix}" for number in range(9) for suffix in (".jpg", ".cls", "_b.jpg")]
    assert ("0", "_b.jpg") in pairs(names)
    assert ("0_b", ".jpg") in pairs([*names, "8_b.cls"])


def test_a_part_that_lacks_a_suffix_of_its_partner_is_joined():
    names = [f"{number}{suffix}" for number in range(3) for suffix in (".jpg", ".cls", "_depth.jpg", "_depth.json")]
    assert {key for key, _ in pairs(names)} == {"0", "1", "2"}


def test_a_chain_of_words_is_compared_with_the_key_at_its_root():
    names = [f"{number}{suffix}" for number in range(3) for suffix in (".npz", "_front.jpg", "_front_left.jpg")]
    assert {key for key, _ in pairs(names)} == {"0", "1", "2"}


def test_a_word_that_is_dropped_changes_the_root_of_longer_chains():
    """No `_front` joins since it could be a sample like its partner; then `_left` could be one like its own."""
    names = [f"{number}{word}.jpg" for number in range(3) for word in ("", "_front", "_front_left")]
    assert {suffix for _, suffix in pairs(names)} == {".jpg"}


@pytest.mark.parametrize(("rounds", "key"), [(3, "k"), (MAX_ROUNDS + 2, "k_features")])
def test_where_too_many_words_must_be_dropped_one_by_one_nothing_is_joined(rounds, key):
    """The removal of one word makes the next word of another chain a sample of its own."""
    names = ["k.jpg", "k_features.npz"]
    for number in range(rounds):
        first, second = (f"_w{'x' * at}" for at in (number, number + 1))
        names += [f"{number}.{'jpg' if number == 0 else 'txt'}", f"{number}{first}.jpg", f"{number}{first}{second}.jpg"]
    assert pairs(names)[1][0] == key


# -- stated suffixes -------------------------------------------------------------------------------------------------


def test_names_are_split_at_stated_suffixes():
    names = ["1.png", "1_mask.png", "2.png", "2_mask.png", "3_mask.png"]
    assert pairs(names, [".png", "_mask.png"]) == [
        ("1", ".png"),
        ("1", "_mask.png"),
        ("2", ".png"),
        ("2", "_mask.png"),
        ("3", "_mask.png"),
    ]


def test_parts_that_are_not_stated_are_joined_as_without_statements():
    names = ["0.jpg", "0_features.npz", "0_edge.npz"]
    assert pairs(names, [".jpg", "_features.npz"]) == pairs(names)
    assert {key for key, _ in pairs(names)} == {"0"}


def test_a_sample_for_the_stated_suffixes_is_not_joined_although_it_lacks_others():
    names = [f"{number}{suffix}" for number in range(3) for suffix in (".jpg", ".cls", "_flip.jpg")]
    assert ("0", "_flip.jpg") in pairs(names)
    assert ("0", "_flip.jpg") in pairs(names, [".jpg", ".cls"])
    assert ("0_flip", ".jpg") in pairs(names, [".jpg"])


def test_stating_a_joined_part_does_not_make_other_samples_parts():
    suffixes = (".jpg", ".cls", "_mask.png", "_flip.jpg", "_flip.cls")
    names = [f"{number}{suffix}" for number in range(3) for suffix in suffixes]
    for stated in (["_mask.png"], [".jpg", "_mask.png"]):
        assert {key for key, _ in pairs(names, stated)} == {"0", "0_flip", "1", "1_flip", "2", "2_flip"}


def test_a_mask_is_no_sample_because_its_suffix_is_an_alternative_of_the_image():
    names = [f"{number}{suffix}" for number in range(3) for suffix in (".jpg", "_mask.png")]
    assert {key for key, _ in pairs(names, [(".jpg", ".jpeg", ".png", ".webp")])} == {"0", "1", "2"}


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


def test_names_with_dots_in_their_key_are_split_at_the_stated_suffix():
    names = [f"shot 10.{second}.1.jpg" for second in (30, 31)]
    assert pairs(names, [".jpg"]) == [("shot 10.30.1", ".jpg"), ("shot 10.31.1", ".jpg")]


@pytest.mark.parametrize("stated", [[".png"], [(".jpg", ".png")], [".png", ".cls"]])
def test_another_part_of_a_sample_is_not_split_at_a_stated_suffix_that_it_ends_in(stated):
    """The orphan's `.seg.png` must not be delivered as its image."""
    names = ["0.png", "0.seg.png", "1.png", "1.seg.png", "orphan.seg.png"]
    assert pairs(names, stated) == pairs(names)


def test_stated_suffixes_match_whatever_their_case():
    names = ["1.JPEG", "1_MASK.PNG", "2.v2.JPEG"]
    assert pairs(names, [".jpg", "_mask.png"]) == [("1", ".JPEG"), ("1", "_MASK.PNG"), ("2.v2", ".JPEG")]


def test_alternatives_may_be_written_in_one_string():
    assert alternatives(".jpg|.png") == (".jpg", ".png")
    assert alternatives(".jpg") == (".jpg",)
    assert alternatives((".jpg", ".png")) == (".jpg", ".png")
    assert pairs(["1_a.png", "1_b.png"], ["_a.png|_b.png"]) == [("1", "_a.png"), ("1", "_b.png")]


STATED = [[], [".jpg"], [".npz"], ["_mask.npz", ".jpg"], ["_mask.npz|_features.jpg"], [".b.jpg", ".a"], ["a.jpg"]]


# -- names that belong to no sample ----------------------------------------------------------------------------------


def ignored(names, stated=()):
    return find_ignored(names, split_names(names, stated))


def test_ignored_names_are_found_whatever_suffixes_are_stated():
    names = ["0001.jpg", "._0001_mask.png", "0001_mask", "0001_mask.png"]
    for stated in ([], ["_mask.png"], ["_mask"]):
        assert ignored(names, stated) == {1: "macOS metadata", 2: "no extension"}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (".DS_Store", "macOS metadata"),
        ("train/.DS_Store", "macOS metadata"),
        ("._0001.jpg", "macOS metadata"),
        ("train/._0001.jpg", "macOS metadata"),
        ("__MACOSX/train/0001.jpg", "macOS metadata"),
        ("Thumbs.db", "Windows metadata"),
        ("train/thumbs.DB", "Windows metadata"),
        ("desktop.ini", "Windows metadata"),
        (".gitignore", "hidden file"),
        ("README", "no extension"),
        ("v1.2/README", "no extension"),
        ("train/", "directory"),
        ("v1.2/", "directory"),
        ("", "directory"),
    ],
)
def test_a_name_that_is_no_part_of_a_sample_is_ignored(name, what):
    assert ignored(["a/0.jpg", name, "1.jpg"]) == {1: what}


@pytest.mark.parametrize("name", ["a.jpg", "./a.jpg", "v1.2/a.jpg", "MyThumbs.db", "x__MACOSX/a.jpg", "a.", "a\n.jpg"])
def test_other_names_are_not_ignored(name):
    assert ignored(["0.jpg", name]) == {}


# -- spellings -------------------------------------------------------------------------------------------------------


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


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), max_size=30), st.sampled_from(STATED))
def test_key_and_suffix_always_join_to_the_name(names, stated):
    found = pairs(names, stated)
    assert [key + suffix for key, suffix in found] == names


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), max_size=30), st.sampled_from(STATED))
def test_names_are_not_split_otherwise_unless_that_is_expected(names, stated):
    split = split_names(names)
    if not may_split_otherwise(split.keys, split.suffixes, stated):
        assert pairs(names, stated) == pairs(names)


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), max_size=30), st.sampled_from(STATED))
def test_tables_hold_distinct_strings_that_are_all_used(names, stated):
    split = split_names(names, stated)
    for table, ids in ((split.keys, split.key_ids), (split.suffixes, split.suffix_ids)):
        assert len(set(table)) == len(table)
        assert sorted(set(ids.tolist())) == list(range(len(table)))
    for ids, table in ((split.key_ids, split.keys), (split.suffix_ids, split.suffixes)):
        assert list(dict.fromkeys(ids.tolist())) == list(range(len(table)))


@given(st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=12, unique=True), st.randoms())
def test_the_order_of_the_members_does_not_change_the_pairs(names, rng):
    shuffled = list(names)
    rng.shuffle(shuffled)
    assert sorted(pairs(shuffled)) == sorted(pairs(names))
