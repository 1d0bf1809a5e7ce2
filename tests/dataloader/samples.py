"""Datasets and comparisons for the tests of penstock.DataLoader."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

Point = namedtuple("Point", "x y")

KINDS = {
    "tensor": lambda i: torch.full((3, 2), float(i)),
    "bfloat16": lambda i: torch.full((2,), i, dtype=torch.bfloat16),
    "complex": lambda i: torch.complex(torch.tensor(float(i)), torch.tensor(1.0)),
    "scalar tensor": lambda i: torch.tensor(i),
    "empty tensor": lambda i: torch.zeros(0, 3),
    "strided": lambda i: torch.arange(12.0).view(3, 4).t()[:, ::2] + i,
    "array": lambda i: np.arange(4, dtype=np.int16) + i,
    "bool array": lambda i: np.array([i % 2 == 0, True]),
    "numpy float": lambda i: np.float32(i) / 3,
    "numpy int": lambda i: np.int8(i % 100),
    "numpy bool": lambda i: np.bool_(i % 2),
    "int": lambda i: i,
    "big int": lambda i: i + 2**62,
    "float": lambda i: i / 3,
    "bool": lambda i: i % 3 == 0,
    "str": lambda i: f"sample {i}",
    "bytes": lambda i: bytes([i % 256]) * 3,
    "tuple": lambda i: (i, torch.tensor([i]), str(i)),
    "list": lambda i: [i, [float(i), str(i)]],
    "dict": lambda i: {"a": i, "b": {"c": torch.ones(2) * i, 3: (i, str(i))}},
    "namedtuple": lambda i: Point(i, (torch.tensor(i), str(i))),
    "text and list": lambda i: ["a", str(i)],
    # these have no common layout, so torch's own default_collate makes the batch
    "int or float": lambda i: i if i % 3 else i / 2,
    "bool or int": lambda i: i if i % 2 else True,
    "dtype differs": lambda i: torch.tensor(i) if i % 4 else torch.tensor(float(i)),
    "extra key": lambda i: {"a": i} | ({"b": 1} if i % 2 else {}),
    "key order": lambda i: {"a": i, "b": i} if i % 2 else {"b": i, "a": i},
    "empty dict": lambda i: {},
    "tensor subclass": lambda i: torch.nn.Parameter(torch.ones(2) * i, requires_grad=False),
    "one is sparse": lambda i: torch.eye(2).to_sparse() if i == 7 else torch.eye(2),
    "shape differs": lambda i: torch.zeros(i % 2 + 1),
    "array shape differs": lambda i: np.zeros(5 if i == 9 else 2),
    "length differs": lambda i: [0] * (1 + (i == 5)),
    "key missing": lambda i: {"a": 1} if i == 11 else {"a": 1, "b": 2},
    "object": lambda i: object(),
    "none": lambda i: None,
    "too large": lambda i: 2**70 if i == 3 else i,
    "overflow": lambda i: 2**70,
    "object array": lambda i: np.array(["a", None]),
}


class Samples:
    """A dataset of samples of one kind."""

    def __init__(self, kind: str, length: int = 23) -> None:
        self.kind = kind
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return KINDS[self.kind](index)


class Numbers:
    """A dataset whose samples are their own indices."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def same(one: Any, other: Any) -> bool:
    """Return whether two batches have the same types, dtypes and values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.layout != torch.strided:
            return torch.equal(one.to_dense(), other.to_dense())
        return one.dtype == other.dtype and one.shape == other.shape and bool(torch.equal(one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def outcomes(loader: Any) -> list[Any]:
    """Return the batches of an epoch, with the type and the last line of the error in the place of those that fail."""
    iterator, found = iter(loader), []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            text = getattr(error, "msg", None) or str(error)
            found.append((type(error).__name__, text.strip().splitlines()[-1]))
