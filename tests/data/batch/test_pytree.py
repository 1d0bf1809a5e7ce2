"""Samples of any structure, flattened and collated as torch's default_collate does it."""

import collections
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from penstock.data.batch.pytree import as_leaf, flatten, skeleton, unflatten

Point = collections.namedtuple("Point", "x y")


class Tagged(dict):
    """A mapping with a type of its own."""


def collated(samples):
    """Collate samples as a loader does: stack the leaves, in the structure of the first sample."""
    flat = [flatten(sample) for sample in samples]
    leaves = {}
    for name, first in flat[0].items():
        values = [sample[name] for sample in flat]
        leaf = as_leaf(first)
        if leaf is None:
            leaves[name] = values
            continue
        stacked = torch.from_numpy(np.stack([as_leaf(value).array for value in values]))
        leaves[name] = stacked.view(getattr(torch, leaf.torch_dtype)) if leaf.torch_dtype else stacked
    return unflatten(skeleton(samples[0]), leaves)


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found, expected)
    elif isinstance(expected, collections.abc.Mapping):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


DTYPES = ["bool", "uint8", "int16", "int64", "uint16", "float16", "float32", "float64", "complex64"]
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def leaf_makers(draw):
    """Draw a function from a sample's number to a leaf of one kind."""
    kind = draw(st.sampled_from(["int", "float", "bool", "str", "bytes", "scalar", "array", "tensor", "bfloat16"]))
    shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
    return {
        "int": lambda i: i - 1,
        "float": lambda i: i / 3,
        "bool": lambda i: i % 2 == 0,
        "str": lambda i: f"é{i}",
        "bytes": lambda i: bytes([i]),
        "scalar": lambda i: np.dtype(dtype).type(i),
        "array": lambda i: np.full(shape, i, dtype),
        "tensor": lambda i: torch.from_numpy(np.full((*shape, 2), i, dtype))[..., ::2],
        "bfloat16": lambda i: torch.full(shape, i, dtype=torch.bfloat16, requires_grad=True),
    }[kind]


def containers(children):
    keys = st.one_of(st.text(max_size=3), st.integers(0, 5))
    return st.one_of(
        st.lists(children, max_size=3).map(lambda made: lambda i: [make(i) for make in made]),
        st.lists(children, max_size=3).map(lambda made: lambda i: tuple(make(i) for make in made)),
        st.tuples(children, children).map(lambda made: lambda i: Point(*(make(i) for make in made))),
        st.dictionaries(keys, children, max_size=3).map(lambda made: lambda i: {k: f(i) for k, f in made.items()}),
        st.dictionaries(keys, children, max_size=3).map(
            lambda made: lambda i: Tagged({k: f(i) for k, f in made.items()})
        ),
    )


@given(st.recursive(leaf_makers(), containers, max_leaves=6), st.integers(1, 3))
def test_any_structure_is_collated_as_by_default_collate(make, count):
    samples = [make(i) for i in range(count)]
    assert_same(collated(samples), default_collate([_without_grad(sample) for sample in samples]))


def _without_grad(sample):
    leaves = flatten(sample)
    return unflatten(sample, {n: v.detach() if torch.is_tensor(v) else v for n, v in leaves.items()})


@pytest.mark.parametrize(
    "sample",
    [
        collections.OrderedDict(b=1, a=2.0),
        collections.defaultdict(list, a=1),
        types.MappingProxyType({"a": 1}),
        collections.UserList([1, 2.5]),
        collections.deque([1, 2]),
        range(3),
        {"boxes": ({"x": np.float32(1)}, ["a", b"b"])},
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_containers_of_other_types_are_collated_as_by_default_collate(sample):
    found, expected = collated([sample, sample]), default_collate([sample, sample])
    assert type(found) is type(expected)
    assert_same(*(dict(x) if isinstance(x, collections.abc.Mapping) else list(x) for x in (found, expected)))


def test_leaves_are_named_by_their_path():
    sample = {"image": 1, "boxes": [(2, "a")], "at": Point(3, {4: 5})}
    assert list(flatten(sample)) == [
        "sample['image']",
        "sample['boxes'][0][0]",
        "sample['boxes'][0][1]",
        "sample['at'].x",
        "sample['at'].y[4]",
    ]
    assert flatten(7) == {"sample": 7}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        b"bytes",
        np.array(["text"]),
        np.array([None]),
        np.array(["2024-01-01"], "datetime64[D]"),
        np.zeros(2, ">f4"),
        torch.eye(2).to_sparse(),
        torch.zeros(2, device="meta"),
        object(),
    ],
    ids=["none", "str", "bytes", "str array", "object array", "dates", "big endian", "sparse", "elsewhere", "object"],
)
def test_a_value_that_torch_cannot_hold_unchanged_is_not_a_leaf_of_a_slab(value):
    assert as_leaf(value) is None


def test_the_text_of_a_leaf_is_its_dtype_and_shape():
    assert str(as_leaf(np.zeros((2, 3), "float32"))) == "float32[2, 3]"
    assert str(as_leaf(torch.zeros(4, dtype=torch.bfloat16))) == "bfloat16[4]"
    assert str(as_leaf(5)) == "int64[]"


def test_the_leaf_of_a_tensor_shares_its_memory():
    tensor = torch.zeros(3)
    as_leaf(tensor).array[1] = 5
    assert tensor.tolist() == [0, 5, 0]
