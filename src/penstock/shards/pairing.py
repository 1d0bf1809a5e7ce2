"""Which members belong together: key and suffix of a name.

A name splits at the first dot of its last component (the webdataset convention): `a/0001.seg.png` is key `a/0001`,
suffix `.seg.png`. Beyond that, `0001_features.npz` joins `0001.jpg`: a stem `<stem>_<word>` is read as key `<stem>`
with suffix `_<word>.<ext>` when most stems with that ending have such a partner. Where the caller states the
suffixes, those decide and nothing is inferred.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count, repeat
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

_FIRST = itemgetter(0)
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """For each name, the numbers of its key and its suffix in two tables of distinct strings."""

    keys: list[str]
    suffixes: list[str]
    key_ids: Ids
    suffix_ids: Ids


def split_names(names: Sequence[str], suffixes: Sequence[str] | None = None) -> Split:
    """Key and suffix of every name. A million names a second: all loops over names are in C, on strings only."""
    if suffixes:
        longest_first = sorted(suffixes, key=len, reverse=True)
        keys = [_key_by(name, longest_first) for name in names]
    else:
        keys = _keys_at_dots(names)
        joined = _joined(keys)
        if joined:
            keys = list(map(joined.get, keys, keys))
    key_table, key_ids = _distinct(keys)
    suffix_table, suffix_ids = _distinct(map(str.removeprefix, names, keys))
    return Split(key_table, suffix_table, key_ids, suffix_ids)


def split_at_dot(name: str) -> tuple[str, str]:
    """Key and suffix by the webdataset convention."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name, "") if dot < 0 else (name[:dot], name[dot:])


def role_of(suffix: str) -> str:
    """Suffixes that mean the same to a reader have one role: `.JPEG` and `.jpg`."""
    lower = suffix.lower()
    return lower[:-5] + ".jpg" if lower.endswith(".jpeg") else lower


def _keys_at_dots(names: Sequence[str]) -> list[str]:
    """The keys of `split_at_dot`, without a pair per name to keep the garbage collector busy."""
    if "/" not in "".join(names):
        return list(map(_FIRST, map(str.partition, names, repeat("."))))
    bases = [name.rpartition("/")[2] for name in names]
    suffixes = map(str.removeprefix, bases, [base.partition(".")[0] for base in bases])
    return list(map(str.removesuffix, names, suffixes))


def _key_by(name: str, longest_first: Sequence[str]) -> str:
    for suffix in longest_first:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return split_at_dot(name)[0]


def _joined(keys: Sequence[str]) -> dict[str, str]:
    """From `<stem>_<word>` to `<stem>`, for the words that mark a part of another key.

    Those are the words of which most bearers have a partner: a key that is the bare stem.
    """
    known = dict.fromkeys(keys)
    known.pop("", None)  # no stem, no partner
    stems = list(map(_FIRST, map(str.rpartition, known, repeat("_"))))
    has_partner = list(map(known.__contains__, stems))
    if not any(has_partner):
        return {}
    joined = dict(zip(compress(known, has_partner), compress(stems, has_partner), strict=True))
    partnered = Counter(map(str.removeprefix, joined, joined.values()))  # words, with their bar
    candidates = {word for word in partnered if word[1:2].isalpha() and "/" not in word}
    alone = {key: stem for key, stem in zip(known, stems, strict=True) if stem and key not in joined}
    words_alone = list(map(str.removeprefix, alone, alone.values()))
    lonely = Counter(filter(candidates.__contains__, words_alone))
    marks = {word for word in candidates if partnered[word] > lonely[word]}
    if len(marks) < len(partnered):
        joined = {key: stem for key, stem in joined.items() if key.removeprefix(stem) in marks}
    if lonely:
        joined |= {key: alone[key] for key, word in zip(alone, words_alone, strict=True) if word in marks}
    while any(map(joined.__contains__, joined.values())):  # 0_front_left joins 0_front, and that joins 0
        joined = {key: joined.get(stem, stem) for key, stem in joined.items()}
    return joined


def _distinct(texts: Iterable[str]) -> tuple[list[str], Ids]:
    """The distinct strings in order of appearance, and each string's number among them."""
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # a new string gets the next number
    ids = np.fromiter(map(numbers.__getitem__, texts), np.int64)
    return list(numbers), ids
