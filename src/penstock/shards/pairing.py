"""Which members belong together: key and suffix of a name.

A name splits at the first dot of its last component (the webdataset convention): `a/0001.seg.png` is key `a/0001`,
suffix `.seg.png`. Beyond that, `0001_features.npz` joins `0001.jpg`: a stem `<stem>_<word>` is read as key `<stem>`
with suffix `_<word>.<ext>` when most stems with that ending have such a partner. Where the caller states the
suffixes, those decide and nothing is inferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

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
    """Key and suffix of every name. A million names a second: all loops over names are in C."""
    if suffixes:
        longest_first = sorted(suffixes, key=len, reverse=True)
        return _number([_split_by(name, longest_first) for name in names])
    # partition is the quick way to the first dot, right whenever no directory can hold one
    in_folders = any("/" in name for name in names)
    split = _number([split_at_dot(name) for name in names] if in_folders else _partition(names))
    words = _joining_words(split.keys)
    return _rejoin(split, words) if words else split


def split_at_dot(name: str) -> tuple[str, str]:
    """Key and suffix by the webdataset convention."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name, "") if dot < 0 else (name[:dot], name[dot:])


def role_of(suffix: str) -> str:
    """Suffixes that mean the same to a reader have one role: `.JPEG` and `.jpg`."""
    lower = suffix.lower()
    return lower[:-5] + ".jpg" if lower.endswith(".jpeg") else lower


def _partition(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(key, dot + rest) for key, dot, rest in [name.partition(".") for name in names]]


def _split_by(name: str, longest_first: Sequence[str]) -> tuple[str, str]:
    for suffix in longest_first:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return split_at_dot(name)


def _number(pairs: list[tuple[str, str]]) -> Split:
    keys, key_ids = _distinct([key for key, _ in pairs])
    suffixes, suffix_ids = _distinct([suffix for _, suffix in pairs])
    return Split(keys, suffixes, key_ids, suffix_ids)


def _distinct(texts: list[str]) -> tuple[list[str], Ids]:
    """The distinct strings in order of appearance, and each string's number among them."""
    numbers = dict(zip(dict.fromkeys(texts), count()))
    return list(numbers), np.fromiter(map(numbers.__getitem__, texts), np.int64, len(texts))


def _joining_words(keys: list[str]) -> set[str]:
    """The `_word` endings that mark a part of another key: most stems that bear one have a partner without."""
    ends = [(stem, word) for stem, _, word in [key.rpartition("_") for key in keys] if word[:1].isalpha()]
    bearing = Counter(word for stem, word in ends if stem)
    if not bearing:
        return set()
    known = set(keys)
    partnered = Counter(word for stem, word in ends if stem in known)
    return {word for word, times in partnered.items() if 2 * times > bearing[word]}


def _rejoin(split: Split, words: set[str]) -> Split:
    """Move the `_word` of every key that bears one over to its suffix."""
    ends = [(key, key.rpartition("_")) for key in split.keys]
    moved = [(stem, bar + word) if bar and word in words else (key, "") for key, (stem, bar, word) in ends]
    keys, new_key = _distinct([key for key, _ in moved])
    endings, ending_of_key = _distinct([ending for _, ending in moved])
    width = len(split.suffixes)
    both = ending_of_key[split.key_ids] * width + split.suffix_ids
    used, suffix_ids = np.unique(both, return_inverse=True)
    suffixes = [endings[pair // width] + split.suffixes[pair % width] for pair in used.tolist()]
    return Split(keys, suffixes, new_key[split.key_ids], suffix_ids.astype(np.int64))
