"""Split member names into key and suffix, so that the parts of one sample share a key.

1. A name splits at the first dot of its last component (the webdataset convention): `a/0001.seg.png` is key `a/0001`,
   suffix `.seg.png`.
2. Suffixes that the caller states decide: `0001_mask.png` splits at `_mask.png` if that is stated, and `img.v2.jpg` at
   `.jpg`, unless `.v2.jpg` is a further part of samples that have a `.jpg`.
3. What is left may be joined by inference: `0001_features.npz` becomes a part of `0001`. A stem `<stem>_<word>` is read
   as key `<stem>` if most stems with that word have such a partner, and if none of them could be a sample of its own:
   `0001_flip.jpg` beside `0001.jpg` could, so no `_flip` is joined.

Names that belong to no sample, such as `.DS_Store`, are found by `find_ignored`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, count, repeat
from typing import NamedTuple

import numpy as np

from penstock.core.types import Ids

_WORD = re.compile(r"_[^\W\d_][^_/\n]*+$", re.MULTILINE)
"""Matches a key, among many with one per line, that ends in a word; most shards have none."""
MAX_ROUNDS = 16
"""How often words are dropped from the inference because one of their stems could be a sample. Each drop may make
another necessary, but two levels of words are already rare: names that need more are not joined at all."""


RequiredPart = str | Sequence[str]
"""The suffix of a part that each sample must have, or several suffixes of which it must have one. In one string,
alternatives are separated by "|"."""


def alternatives(part: RequiredPart) -> tuple[str, ...]:
    """Return the suffixes of a part, one or several."""
    return tuple(part.split("|") if isinstance(part, str) else part)


@dataclass(frozen=True, slots=True)
class SplitNames:
    """The key and the suffix of each name, as numbers of strings in two tables of distinct strings."""

    keys: list[str]
    suffixes: list[str]
    key_ids: Ids
    suffix_ids: Ids


def split_names(names: Sequence[str], stated: Sequence[RequiredPart] = ()) -> SplitNames:
    """Split every name into key and suffix, at more than a million names per second (loops on strings, mostly in C)."""
    keys = _keys_at_dots(names)
    parts = [tuple(map(canonical_suffix, alternatives(part))) for part in stated]
    fixed = _keys_at_stated(names, keys, parts) if parts else {}
    for position, key in fixed.items():
        keys[position] = key
    key_numbers, key_ids = _number(keys)
    suffix_numbers, suffix_ids = _number(map(str.removeprefix, names, keys))
    split = SplitNames(list(key_numbers), list(suffix_numbers), key_ids, suffix_ids)
    if not _WORD.search("\n".join(split.keys)):
        return split
    sets = _SuffixSets(split, key_numbers, {suffix for part in parts for suffix in part})
    stems = _stems_of_word_parts(key_numbers, set(fixed.values()), sets)
    return _join_stems(split, stems) if stems else split


def split_at_dot(name: str) -> tuple[str, str]:
    """Split a name into key and suffix by the webdataset convention."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name, "") if dot < 0 else (name[:dot], name[dot:])


def canonical_suffix(suffix: str) -> str:
    """Return the spelling that stands for all suffixes a reader treats alike, such as `.jpg` for `.JPEG`."""
    lower = suffix.lower()
    return lower[:-5] + ".jpg" if lower.endswith(".jpeg") else lower


def _keys_at_dots(names: Sequence[str]) -> list[str]:
    """Return the keys of `split_at_dot`, without a tuple per name for the garbage collector to visit."""
    keys = [name.partition(".")[0] for name in names]
    text = "".join(names)
    if "/" not in text or text.count("/") == "".join(keys).count("/"):  # no folder has a dot in its name
        return keys
    bases = [name.rpartition("/")[2] for name in names]
    suffixes = map(str.removeprefix, bases, [base.partition(".")[0] for base in bases])
    return list(map(str.removesuffix, names, suffixes))


def _number(texts: Iterable[str]) -> tuple[dict[str, int], Ids]:
    """Number the distinct strings in order of appearance; return these numbers, and the number of each string."""
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # a new string gets the next number
    ids = np.fromiter(map(numbers.__getitem__, texts), np.int64)
    numbers.default_factory = None
    return numbers, ids


# -- names that belong to no sample ------------------------------------------------------------------------------------

_ODD_KEYS = ("\n\n", "/\n", "\n.", "/.", "__macosx/", "thumbs\n", "desktop\n")
"""Keys that ignored names may have, among keys in lower case with one per line."""
_WINDOWS = ("thumbs.db", "desktop.ini")


def find_ignored(names: Sequence[str], split: SplitNames) -> dict[int, str]:
    """Return the positions of the names that belong to no sample, and what each of them is."""
    text = "\n".join(("", *split.keys, "")).lower()
    if all("." in suffix for suffix in split.suffixes) and not any(odd in text for odd in _ODD_KEYS):
        return {}
    return {position: what for position, name in enumerate(names) if (what := _ignored_kind(name))}


def _ignored_kind(name: str) -> str | None:
    """Return what a name stands for that is not a part of a sample; None if it may be one."""
    folder, _, base = name.rpartition("/")
    if "__MACOSX" in folder.split("/") or base == ".DS_Store" or base.startswith("._"):
        return "macOS metadata"
    if base.lower() in _WINDOWS:
        return "Windows metadata"
    if base.startswith("."):
        return "hidden file"
    if not base:  # so are directories named in tars older than ustar
        return "directory"
    return None if "." in base else "no extension"


# -- stated suffixes -------------------------------------------------------------------------------------------------


def may_split_otherwise(keys: Sequence[str], suffixes: Sequence[str], stated: Sequence[RequiredPart]) -> bool:
    """Return whether stated suffixes may split the names, which are split without them, at other places.

    This is much quicker than to split all names again, and False is certain.
    """
    wanted = {canonical_suffix(suffix) for part in stated for suffix in alternatives(part)}
    text = None
    for found in set(map(canonical_suffix, suffixes)):
        if found not in wanted and any(found.endswith(suffix) for suffix in wanted):
            return True
        rests = [suffix.removesuffix(found) for suffix in wanted if suffix.endswith(found) and suffix != found]
        if rests:
            text = "\n".join(keys).lower() + "\n" if text is None else text
            if any(rest + "\n" in text for rest in rests):
                return True
    return False


def _keys_at_stated(names: Sequence[str], keys: Sequence[str], parts: Sequence[tuple[str, ...]]) -> dict[int, str]:
    """Return the keys of the names that stated suffixes split elsewhere than at the first dot, by position.

    `keys` are the keys at the first dots, and `parts` the canonical suffixes that are stated for each part.
    """
    owners = {suffix: number for number, part in enumerate(parts) for suffix in part}
    longest_first = sorted(owners, key=len, reverse=True)
    words = [suffix for suffix in longest_first if not suffix.startswith(".")]
    tails, tail_ids = _number(map(str.removeprefix, names, keys))
    canonical = list(map(canonical_suffix, tails))
    inside = [next(filter(tail.endswith, longest_first), tail) for tail in canonical]
    """The stated suffix that each tail ends in, or else the tail itself."""
    across = [[word for word in words if word.endswith(tail) and word != tail] for tail in canonical]
    """The stated suffixes that begin before each tail."""
    for tail in _companions(keys, tail_ids, canonical, inside, parts, owners):
        inside[tail] = canonical[tail]
    odd = [tail != end or bool(words) for tail, end, words in zip(canonical, inside, across, strict=True)]
    found: dict[int, str] = {}
    for position in np.flatnonzero(np.array(odd, bool)[tail_ids]).tolist():
        name, tail = names[position].lower(), tail_ids[position]
        spelled = canonical_suffix(name)
        end = next(filter(spelled.endswith, across[tail]), inside[tail])
        if end != canonical[tail]:
            length = len(end) + len(name) - len(spelled)
            found[position] = names[position][:-length]
    return found


def _companions(
    keys: Sequence[str],
    tail_ids: Ids,
    tails: Sequence[str],
    inside: Sequence[str],
    parts: Sequence[tuple[str, ...]],
    owners: dict[str, int],
) -> Iterable[int]:
    """Return the tails such as `.seg.png` that end in a stated `.png` and are another part of samples with a `.png`."""
    candidates = [end.startswith(".") and end != tail for tail, end in zip(tails, inside, strict=True)]
    if not any(candidates):
        return ()
    ends_in = np.array([owners[end] if is_one else -1 for end, is_one in zip(inside, candidates, strict=True)])
    key_ids = _number(keys)[1]
    found: set[int] = set()
    for number, part in enumerate(parts):
        is_part = np.array([tail in part for tail in tails])
        has_part = np.bincount(key_ids, is_part[tail_ids]) > 0
        found.update(tail_ids[(ends_in[tail_ids] == number) & has_part[key_ids]].tolist())
    return found


# -- inference -------------------------------------------------------------------------------------------------------


def _stems_of_word_parts(keys: Collection[str], fixed: Iterable[str], sets: _SuffixSets) -> dict[str, str]:
    """Map `<stem>_<word>` to `<stem>` for the words that mark a part of another key.

    These are the words for which most keys that end in them have a partner, a key that is the stem alone, and no key
    that ends in them could be a sample like its partner. The `fixed` keys are results of stated suffixes.
    """
    stems = {key: halves[0] for key in keys if (halves := key.rpartition("_"))[2] >= "A" and halves[0]}
    for key in fixed:
        stems.pop(key, None)
    words = list(map(str.removeprefix, stems, stems.values()))  # with their underscore
    total, with_partner = Counter(words), Counter(compress(words, map(keys.__contains__, stems.values())))
    marks = {
        word for word, many in with_partner.items() if 2 * many > total[word] and word[1].isalpha() and "/" not in word
    }
    for _ in range(MAX_ROUNDS):
        if len(marks) < len(total):
            stems = {key: stem for (key, stem), word in zip(stems.items(), words, strict=True) if word in marks}
            words = list(map(str.removeprefix, stems, stems.values()))
        roots = stems
        while any(map(roots.__contains__, roots.values())):  # 0_front_left joins 0_front, which joins 0
            roots = {key: roots.get(stem, stem) for key, stem in roots.items()}
        samples = set(compress(words, sets.could_be_samples(roots))) if sets.have_common(roots) else ()
        if not samples:
            return roots
        marks -= samples
    return {}


class _SuffixTables(NamedTuple):
    """The suffixes of all keys, each as key * width + suffix, sorted."""

    width: int
    pairs: Ids
    """Each key's suffixes."""
    needed: Ids
    """The suffixes that make a sample: of those at a dot the stated ones, or all if the key has none of these."""
    counts: Ids
    """The number of suffixes of each key."""
    first_needed: Ids
    """The place in `needed` at which the suffixes of each key begin."""


class _SuffixSets:
    """The canonical suffixes of each key; the tables of all keys are made when they are needed."""

    def __init__(self, split: SplitNames, key_numbers: dict[str, int], stated: Collection[str]) -> None:
        self._split = split
        self._stated = stated
        self._key_numbers = key_numbers

    def have_common(self, roots: dict[str, str]) -> bool:
        """Return whether a key that would be joined has a suffix that any other key has; else none can be a sample."""
        split = self._split
        is_joined = np.zeros(len(split.keys), bool)
        is_joined[np.fromiter(map(self._key_numbers.__getitem__, roots), np.int64)] = True
        pairs = np.bincount(2 * split.suffix_ids + is_joined[split.key_ids], minlength=2 * len(split.suffixes)) > 0
        others, joined = (set(map(canonical_suffix, compress(split.suffixes, pairs[side::2]))) for side in (0, 1))
        return not joined.isdisjoint(others)

    @cached_property
    def _tables(self) -> _SuffixTables:
        split = self._split
        suffixes, numbers = _number(map(canonical_suffix, split.suffixes))
        width = len(suffixes)
        pairs = np.sort(split.key_ids * width + numbers[split.suffix_ids])
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        keys, of_key = pairs // width, pairs % width
        at_dot = np.array([suffix.startswith(".") for suffix in suffixes])[of_key]
        is_stated = at_dot & np.array([suffix in self._stated for suffix in suffixes])[of_key]
        has_stated = np.bincount(keys, is_stated) > 0
        needed = pairs[is_stated | at_dot & ~has_stated[keys]]
        bounds = np.arange(len(split.keys) + 1) * width
        return _SuffixTables(
            width, pairs, needed, np.diff(np.searchsorted(pairs, bounds)), np.searchsorted(needed, bounds)
        )

    def could_be_samples(self, roots: dict[str, str]) -> list[bool]:
        """Return for each key whether it has all suffixes that make a sample of its root."""
        width, pairs, all_needed, counts, first_needed = self._tables
        keys = np.fromiter(map(self._key_numbers.__getitem__, roots), np.int64)
        of_root = np.fromiter(map(self._key_numbers.get, roots.values(), repeat(-1)), np.int64)
        first = first_needed[of_root]
        needed = first_needed[of_root + 1] - first
        could = (of_root >= 0) & (needed > 0) & (needed <= counts[keys])
        keys, first, needed = keys[could], first[could], needed[could]
        owner = np.repeat(np.arange(len(keys)), needed)
        nth = np.arange(len(owner)) - (np.cumsum(needed) - needed)[owner]
        wanted = keys[owner] * width + all_needed[first[owner] + nth] % width
        at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        could[could] = np.bincount(owner, pairs[at] != wanted, len(keys)) == 0
        answers: list[bool] = could.tolist()
        return answers


def _join_stems(split: SplitNames, stems: dict[str, str]) -> SplitNames:
    """Return the names with these keys replaced by their stems, and the words moved to the suffixes."""
    joined = list(map(stems.get, split.keys, split.keys))
    keys, key_numbers = _number(joined)
    word_numbers, of_key = _number(map(str.removeprefix, split.keys, joined))
    pairs = of_key[split.key_ids] * len(split.suffixes) + split.suffix_ids
    order = np.argsort(pairs, kind="stable")
    is_first = np.diff(pairs[order], prepend=-1) > 0
    by_appearance = np.argsort(order[is_first])
    suffix_ids = np.empty_like(pairs)
    suffix_ids[order] = np.argsort(by_appearance)[np.cumsum(is_first) - 1]
    words = list(word_numbers)
    suffixes = [
        words[pair // len(split.suffixes)] + split.suffixes[pair % len(split.suffixes)]
        for pair in pairs[order[is_first][by_appearance]].tolist()
    ]
    return SplitNames(list(keys), suffixes, key_numbers[split.key_ids], suffix_ids)
