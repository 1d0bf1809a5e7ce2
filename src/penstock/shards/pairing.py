"""Split member names into key and suffix, so that the parts of one sample share a key.

A name splits at the first dot of its last component (the webdataset convention): `a/0001.seg.png` is key `a/0001`,
suffix `.seg.png`. Beyond that, `0001_features.npz` joins `0001.jpg`: a stem `<stem>_<word>` is read as key `<stem>`
with suffix `_<word>.<ext>` if most stems with that ending have such a partner. If the caller states the suffixes,
they decide and nothing is inferred.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count

import numpy as np

from penstock.core.types import Ids

_WORD = re.compile(r"_[^\W\d_][^_/\n]*+$", re.MULTILINE)
"""Matches a key, among many with one per line, that ends in a word; most shards have none."""


@dataclass(frozen=True, slots=True)
class SplitNames:
    """The key and the suffix of each name, as numbers of strings in two tables of distinct strings."""

    keys: list[str]
    suffixes: list[str]
    key_ids: Ids
    suffix_ids: Ids


def split_names(names: Sequence[str], suffixes: Sequence[str] | None = None) -> SplitNames:
    """Split every name into key and suffix, at more than a million names per second (loops on strings, mostly in C)."""
    if suffixes:
        longest_first = sorted(suffixes, key=len, reverse=True)
        keys = [_key_by_suffix(name, longest_first) for name in names]
    else:
        keys = _keys_at_dots(names)
        stems = _keys_of_word_parts(keys)
        if stems:
            keys = list(map(stems.get, keys, keys))
    key_table, key_ids = _factorize(keys)
    suffix_table, suffix_ids = _factorize(map(str.removeprefix, names, keys))
    return SplitNames(key_table, suffix_table, key_ids, suffix_ids)


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


def _key_by_suffix(name: str, longest_first: Sequence[str]) -> str:
    for suffix in longest_first:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return split_at_dot(name)[0]


def _keys_of_word_parts(keys: Sequence[str]) -> dict[str, str]:
    """Map `<stem>_<word>` to `<stem>` for the words that mark a part of another key.

    These are the words for which most keys that end in them have a partner: a key that is the stem alone.
    """
    if not _WORD.search("\n".join(keys)):
        return {}
    known = dict.fromkeys(keys)
    stems = {key: halves[0] for key in known if (halves := key.rpartition("_"))[2] >= "A" and halves[0]}
    words = list(map(str.removeprefix, stems, stems.values()))  # with their underscore
    total, with_partner = Counter(words), Counter(compress(words, map(known.__contains__, stems.values())))
    marks = {
        word for word, many in with_partner.items() if 2 * many > total[word] and word[1].isalpha() and "/" not in word
    }
    if len(marks) < len(total):
        stems = {key: stem for (key, stem), word in zip(stems.items(), words, strict=True) if word in marks}
    while any(map(stems.__contains__, stems.values())):  # 0_front_left joins 0_front, which joins 0
        stems = {key: stems.get(stem, stem) for key, stem in stems.items()}
    return stems


def _factorize(texts: Iterable[str]) -> tuple[list[str], Ids]:
    """Return the distinct strings in order of appearance, and the number of each string among them."""
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # a new string gets the next number
    ids = np.fromiter(map(numbers.__getitem__, texts), np.int64)
    return list(numbers), ids
