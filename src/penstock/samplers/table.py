"""What is known of every sample without looking at it again: identity, modality, camera, length, as columns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.core.text import suggest_name
from penstock.errors import SampleError, SettingError

Ids = NDArray[np.int64]
Value = str | int | float
Where = Callable[[int], Mapping[str, Any]]
"""From a sample's number to what an error says of its place: shard, member, offset."""
_LISTED = 6
"""Values that are told one by one; of more only their number is."""


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    """One value for each sample."""

    data: NDArray[Any]
    """Numbers as they are, int64 or float64; for words, places in the list of them."""
    words: tuple[str, ...] | None = None
    """In alphabetical order."""

    def codes(self) -> tuple[Ids, list[Value]]:
        """Values in order, and for each sample the place of its own."""
        if self.words is not None:
            return self.data, list(self.words)
        values, codes = np.unique(self.data, return_inverse=True)
        return codes.astype(np.int64), values.tolist()

    def value(self, sample: int) -> Value:
        """Of one sample."""
        number: int | float = self.data[sample].item()
        return number if self.words is None else self.words[int(number)]


@dataclass(frozen=True, eq=False)
class MetadataTable:
    """Columns over the samples of a dataset, in its order: read once, drawn from at every step."""

    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        lengths = {name: len(column.data) for name, column in self.columns.items()}
        if not lengths:
            raise SettingError("metadata without a column says nothing")
        if len(set(lengths.values())) > 1:
            raise SettingError(f"columns of metadata differ in length: {lengths}")
        if not len(self):
            raise SettingError("the dataset is empty: there is nothing to draw from")

    @classmethod
    def of(cls, **columns: Sequence[Any] | NDArray[Any]) -> Self:
        """From values at hand: `MetadataTable.of(identity=[3, 3, 7], modality=["rgb", "ir", "rgb"])`."""
        return cls({name: as_column(name, list(values), _number) for name, values in columns.items()})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).data)

    def column(self, name: str) -> Column:
        """By its name."""
        if name not in self.columns:
            raise SettingError(f"metadata has no column {name!r}", advice=suggest_name(name, self.columns))
        return self.columns[name]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column that is to be reckoned with."""
        column = self.column(name)
        if column.words is not None:
            raise SettingError(f"column {name!r} holds words, such as {column.words[0]!r}, where numbers are needed")
        return column.data.astype(np.float64)

    def row(self, sample: int) -> dict[str, Value]:
        """All that is known of one sample."""
        return {name: column.value(sample) for name, column in self.columns.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Of all that is in it."""
        digest = hashlib.sha256()
        for name, column in self.columns.items():
            digest.update(f"{name} {column.data.dtype.str} {column.words}\n".encode())
            digest.update(column.data.tobytes())
        return digest.hexdigest()[:32]

    def __str__(self) -> str:
        return f"{len(self):,} samples: " + ", ".join(_told(name, each) for name, each in self.columns.items())


def as_table(rows: Sequence[Any], names: Sequence[str] | None, where: Where) -> MetadataTable:
    """Of one mapping per sample; without names, of all plain values that the first sample has."""
    for sample, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise _odd(f"metadata is {type(row).__name__}, not a mapping of names to values", where(sample))
    if not rows:
        raise SettingError("the dataset is empty: there is no metadata to read")
    if names is None:
        names = [name for name, value in rows[0].items() if isinstance(_plain(value), str | int | float)]
    return MetadataTable({name: as_column(name, _values(rows, name, where), where) for name in names})


def as_column(name: str, values: Sequence[Any], where: Where) -> Column:
    """Words or numbers, not both; numpy's numbers and tensors of one number will do."""
    plain = [_plain(value) for value in values]
    kinds = set(map(type, plain))
    if kinds == {str}:
        words = sorted(set(plain))
        places = {word: place for place, word in enumerate(words)}
        return Column(np.fromiter((places[word] for word in plain), np.int64, len(plain)), tuple(words))
    expected = str if plain and isinstance(plain[0], str) else (int, float, bool)
    for sample, value in enumerate(plain):
        if not isinstance(value, expected) or (isinstance(value, float) and isnan(value)):
            kind = "a word" if expected is str else "a number"
            raise _odd(f"{name} is {value!r}, not {kind} as elsewhere", where(sample))
    try:
        return Column(np.array(plain, np.float64 if float in kinds else np.int64))
    except OverflowError as error:
        raise SettingError(f"{name} has numbers that do not fit into 64 bits") from error


def _values(rows: Sequence[Mapping[str, Any]], name: str, where: Where) -> list[Any]:
    try:
        return [row[name] for row in rows]
    except KeyError:
        sample = next(sample for sample, row in enumerate(rows) if name not in row)
        raise _odd(f"metadata has no {name!r}, only {', '.join(map(repr, rows[sample]))}", where(sample)) from None


def _number(sample: int) -> dict[str, Any]:
    return {"member": str(sample)}


def _plain(value: Any) -> Any:
    """A number of numpy's or a tensor of one number, as Python has it."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _odd(reason: str, where: Mapping[str, Any]) -> SampleError:
    return SampleError(
        reason,
        stage="metadata",
        advice="Give every sample the same names, or say with columns= which of them to read",
        **where,
    )


def _told(name: str, column: Column) -> str:
    codes, values = column.codes()
    if len(values) > _LISTED:
        return f"{name} ({len(values):,} values)"
    shares = np.bincount(codes, minlength=len(values)) / len(codes)
    return f"{name} ({', '.join(f'{value} {share:.0%}' for value, share in zip(values, shares, strict=True))})"
