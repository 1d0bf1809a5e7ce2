"""Which members belong together: key and suffix of a name.

A name splits at the first dot of its last component (the webdataset convention): `a/0001.seg.png` is key `a/0001`,
suffix `.seg.png`. Beyond that, `0001_features.npz` joins `0001.jpg`: a stem `<stem>_<word>` is read as key `<stem>`
with suffix `_<word>.<ext>` when most stems with that ending have such a partner. Where the caller states the
suffixes, those decide and nothing is inferred.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count

import numpy as np
from numpy.typing import NDArray

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
        endings = [_ending(name, longest_first) for name in names]
        return _number(list(map(str.removesuffix, names, endings)), endings)
    keys, endings = _split_at_dots(names)
    joined = _joined(list(dict.fromkeys(keys)))
    if joined:
        keys = list(map(joined.get, keys, keys))
        endings = list(map(str.removeprefix, names, keys))
    return _number(keys, endings)


def split_at_dot(name: str) -> tuple[str, str]:
    """Key and suffix by the webdataset convention."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name, "") if dot < 0 else (name[:dot], name[dot:])


def role_of(suffix: str) -> str:
    """Suffixes that mean the same to a reader have one role: `.JPEG` and `.jpg`."""
    lower = suffix.lower()
    return lower[:-5] + ".jpg" if lower.endswith(".jpeg") else lower


def _split_at_dots(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """`split_at_dot` for all names at once: a pair per name would keep the garbage collector busy."""
    in_folders = "/" in "".join(names)
    bases = [name.rpartition("/")[2] for name in names] if in_folders else names
    stems = [base.partition(".")[0] for base in bases]
    suffixes = list(map(str.removeprefix, bases, stems))
    return list(map(str.removesuffix, names, suffixes)) if in_folders else stems, suffixes


def _ending(name: str, longest_first: Sequence[str]) -> str:
    for suffix in longest_first:
        if name.endswith(suffix):
            return suffix
    return split_at_dot(name)[1]


def _joined(keys: list[str]) -> dict[str, str]:
    """From `<stem>_<word>` to `<stem>`, for the words that mark a part of another key.

    Those are the words of which most bearers have a partner, a key that is their bare stem.
    """
    known = set(keys) - {""}
    stems = [key.rpartition("_")[0] for key in keys]
    has_partner = list(map(known.__contains__, stems))
    if not any(has_partner):
        return {}
    words = list(map(str.removeprefix, keys, stems))  # with the bar; without a bar, the whole key
    partnered = Counter(compress(words, has_partner))
    bearing = Counter(compress(words, stems))
    marks = {
        word
        for word, times in partnered.items()
        if word[1:2].isalpha() and "/" not in word and 2 * times > bearing[word]
    }
    return {key: stem for key, stem, word in zip(keys, stems, words, strict=True) if word in marks and stem}


def _number(keys: list[str], suffixes: list[str]) -> Split:
    key_table, key_ids = _distinct(keys)
    suffix_table, suffix_ids = _distinct(suffixes)
    return Split(key_table, suffix_table, key_ids, suffix_ids)


def _distinct(texts: list[str]) -> tuple[list[str], Ids]:
    """The distinct strings in order of appearance, and each string's number among them."""
    numbers: defaultdict[str, int] = defaultdict(count().__next__)  # a new string gets the next number
    ids = np.fromiter(map(numbers.__getitem__, texts), np.int64, len(texts))
    return list(numbers), ids
