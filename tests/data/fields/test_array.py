"""The array field: arrays of NPZ and NPY parts, packed or not."""

import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from penstock.data.fields import Array, Label
from penstock.data.fields.base import SampleContext
from penstock.datasets import ShardDataset
from penstock.errors import DecodeError, GuardError, SampleError, SettingError
from penstock.shards.codecs.arrays import encode_npy
from penstock.shards.codecs.zstd import compress
from penstock.testing import tar_bytes

FEATURES = np.arange(24, dtype=np.float16).reshape(2, 3, 4)


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return memoryview(buffer.getvalue())


def npy(array):
    return memoryview(encode_npy(array))


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        ("_features.npz", npz(other=np.zeros(3), features=FEATURES)),
        (".features.npz", npz(features=FEATURES)),
        (".features.features.npy", npy(FEATURES)),
        (".features.features.npy.zst", memoryview(compress(encode_npy(FEATURES)))),
    ],
)
def test_an_array_is_read_from_original_and_from_packed_parts(suffix, data):
    field = Array("_features.npz", key="features")
    assert suffix in field.suffixes
    slot = np.empty((2, 3, 4), np.float16)
    field.decode_into(suffix, data, slot, SampleContext())
    assert np.array_equal(slot, FEATURES)
    assert np.array_equal(field.decode_value(suffix, data, SampleContext()), FEATURES)


@pytest.mark.parametrize(
    ("declared", "suffixes"),
    [
        (Array(".mask.npy"), (".mask.npy", ".mask.npy.zst")),
        (Array("_mask.npy"), ("_mask.npy", ".mask.npy", ".mask.npy.zst")),
        (Array(".npz", key="a/b"), (".npz", ".a%2Fb.npy", ".a%2Fb.npy.zst")),
    ],
)
def test_declared_suffixes_come_before_packed_ones(declared, suffixes):
    assert declared.suffixes == suffixes


def test_an_array_in_fortran_order_is_read_correctly():
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(FEATURES[0]))
    slot = np.empty((3, 4), np.float16)
    Array(".npy").decode_into(".npy", memoryview(buffer.getvalue()), slot, SampleContext())
    assert np.array_equal(slot, FEATURES[0])


@pytest.mark.parametrize("slot", [np.empty((2, 3, 5), np.float16), np.empty((2, 3, 4), np.float32)])
def test_an_error_about_the_slot_of_an_array_names_the_expected_and_the_found_shape(slot):
    with pytest.raises(SampleError) as caught:
        Array(".npy").decode_into(".npy", npy(FEATURES), slot, SampleContext())
    expected = f"{slot.dtype}{list(slot.shape)}"
    assert caught.value.reason == f"array is float16[2, 3, 4] where {expected} is expected"
    assert "ragged=True" in caught.value.advice


@pytest.mark.parametrize(
    ("declared", "expected"),
    [({"shape": (2, 3, 5)}, "float16[2, 3, 5]"), ({"dtype": "float32"}, "float32[2, 3, 4]")],
)
@pytest.mark.parametrize("ragged", [False, True])
def test_a_declared_shape_or_dtype_is_enforced(declared, expected, ragged):
    if ragged and "shape" in declared:
        declared, expected = {"dtype": "int8"}, "int8[2, 3, 4]"
    with pytest.raises(SampleError) as caught:
        Array(".npy", ragged=ragged, **declared).decode_value(".npy", npy(FEATURES), SampleContext())
    assert caught.value.reason == f"array is float16[2, 3, 4] where {expected} is expected"


def test_an_array_of_the_declared_shape_and_dtype_is_accepted():
    found = Array(".npy", shape=(2, 3, 4), dtype="float16").decode_value(".npy", npy(FEATURES), SampleContext())
    assert np.array_equal(found, FEATURES)


@pytest.mark.parametrize(("suffix", "encode"), [(".npy", npy), (".npz", lambda array: npz(a=array))])
def test_a_ragged_array_is_a_copy_that_outlives_the_arena(suffix, encode):
    memory = bytearray(encode(FEATURES))
    found = Array(suffix, key="a" if suffix == ".npz" else None, ragged=True).decode_value(
        suffix, memoryview(memory), SampleContext()
    )
    memory[:] = bytes(len(memory))
    assert np.array_equal(found, FEATURES)
    assert found.flags.writeable


def test_an_error_about_a_missing_array_names_those_that_the_npz_has():
    with pytest.raises(DecodeError, match="no array 'features'; it has 'edge'"):
        Array(".npz", key="features").decode_value(".npz", npz(edge=FEATURES), SampleContext())


def test_pickled_objects_are_refused():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], object), allow_pickle=True)
    with pytest.raises(GuardError, match="pickles"):
        Array(".npy").decode_value(".npy", memoryview(buffer.getvalue()), SampleContext())


@pytest.mark.parametrize(
    ("suffix", "settings", "reason"),
    [
        (".npz", {}, "no key selects an array of '.npz'"),
        (".jpg", {}, "is not an array part"),
        (".npy", {"ragged": True, "shape": (3,)}, "ragged array has no single shape"),
        (".npy", {"dtype": "float17"}, "dtype 'float17' is not known"),
        (".npy", {"key": "x"}, "holds one array: key='x' has no meaning"),
        ((".mask.npy", ".mask.npy.zst"), {"key": "x"}, "has no meaning"),
    ],
)
def test_invalid_array_settings_are_refused(suffix, settings, reason):
    with pytest.raises(SettingError, match=reason):
        Array(suffix, **settings)


def test_a_key_that_only_some_of_the_suffixes_need_is_accepted():
    assert Array((".npz", ".npy"), key="x").decode_value(".npy", npy(FEATURES), SampleContext()).shape == FEATURES.shape


# -- dtypes that tensors do not have ----------------------------------------------------------------------------------

BFLOATS = np.array([0.0, 1.0, -2.5, 2.0**100, np.inf], np.float32)
BITS = (BFLOATS.view(np.uint32) >> 16).astype(np.uint16)
"""The same numbers as bfloat16, whose bits are the upper half of a float32."""


def saved(array):
    """Return what numpy itself saves; unlike encode_npy it refuses nothing."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return memoryview(buffer.getvalue())


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", ">u4", ">f2", ">c8"])
@pytest.mark.parametrize("ragged", [False, True])
def test_big_endian_arrays_are_delivered_in_the_order_of_the_machine(dtype, ragged):
    stored = np.arange(6).reshape(2, 3).astype(dtype)
    native = stored.dtype.newbyteorder("=")
    for data, suffix in ((saved(stored), ".npy"), (npz(a=stored), ".npz")):
        field = Array(suffix, "a" if suffix == ".npz" else None, dtype=native.name, ragged=ragged)
        value = field.decode_value(suffix, data, SampleContext())
        assert (value.dtype.str, value.tolist()) == (native.str, stored.tolist())
        slot = np.zeros((2, 3), native)
        field.decode_into(suffix, data, slot, SampleContext())
        assert slot.tolist() == stored.tolist()


def test_big_endian_bytes_are_not_read_directly_into_a_slot():
    data = saved(np.arange(3, dtype=">f4"))
    assert not Array(".npy").read_into(".npy", len(data), np.zeros(3, np.float32), reads(data))


def reads(data):
    """Return a function that fills memory with the data, from its start."""

    def read(buffers):
        position = 0
        for buffer in buffers:
            buffer[:] = data[position : position + len(buffer)]
            position += len(buffer)

    return read


@pytest.mark.parametrize("ragged", [False, True])
def test_bfloat16_is_read_as_its_bits(ragged):
    data = saved(BITS.view("V2"))
    field = Array(".npy", dtype="bfloat16", ragged=ragged)
    value = field.decode_value(".npy", data, SampleContext())
    assert (value.dtype, value.tolist()) == (np.uint16, BITS.tolist())
    slot = np.zeros(5, np.uint16)
    field.decode_into(".npy", data, slot, SampleContext())
    assert slot.tolist() == BITS.tolist()
    slot[:] = 0
    assert field.read_into(".npy", len(data), slot, reads(data))
    assert slot.tolist() == BITS.tolist()


def test_bfloat16_as_ml_dtypes_saves_it_and_as_it_is_packed_is_read():
    saved_by_ml_dtypes = bytes(saved(BITS.view("V2"))).replace(b"'|V2'", b"'<V2'")
    assert b"'<V2'" in saved_by_ml_dtypes
    packed = encode_npy(BITS.view("V2"))
    field = Array((".npy", ".npy.zst"), dtype="bfloat16")
    for suffix, data in ((".npy", saved_by_ml_dtypes), (".npy", packed), (".npy.zst", compress(packed))):
        assert field.decode_value(suffix, memoryview(data), SampleContext()).tolist() == BITS.tolist()


@pytest.mark.parametrize("stored", [np.zeros(3, np.uint16), np.zeros(3, np.float32), np.zeros(3, np.float16)])
def test_an_array_declared_as_bfloat16_must_be_stored_as_such(stored):
    with pytest.raises(SampleError) as caught:
        Array(".npy", dtype="bfloat16").decode_value(".npy", saved(stored), SampleContext())
    assert caught.value.reason == f"array is {stored.dtype}[3] where bfloat16[3] is expected"


@pytest.mark.parametrize(
    ("stored", "advice"),
    [
        (np.array(["abc", "ü"]), "part of its own"),
        (np.array([b"abc"]), "part of its own"),
        (np.zeros(2, np.longdouble), "float64"),
        (np.zeros(2, np.clongdouble), "complex128"),
        (BITS.view("V2"), 'declare the field with dtype="bfloat16"'),
        (np.zeros(2, "V1"), "as numbers"),
        (np.zeros(2, "V16"), "as numbers"),
        (np.zeros(2, [("x", "<f4"), ("y", "<i4")]), "columns as an array of its own"),
        (np.array([{}, []], object), "never unpickles"),
        (np.zeros(2, "M8[s]"), "Save the array again"),
        (np.zeros(2, ">f8").view(">m8[s]"), "Save the array again"),
    ],
    ids=lambda stored: str(getattr(stored, "dtype", "")),
)
@pytest.mark.parametrize("ragged", [False, True])
def test_an_array_that_no_tensor_can_hold_is_a_bad_sample_with_advice(stored, advice, ragged):
    for data, suffix in ((saved(stored), ".npy"), (npz(a=stored), ".npz")):
        field = Array(suffix, "a" if suffix == ".npz" else None, ragged=ragged)
        with pytest.raises(SampleError) as caught:
            field.decode_value(suffix, data, SampleContext())
        assert advice in caught.value.advice
        with pytest.raises(SampleError):
            field.decode_into(suffix, data, np.zeros(2), SampleContext())


# -- optional arrays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fill", "dtype", "expected"),
    [(-1, "int16", -1), (0.5, "float32", 0.5), (True, "bool", True), (0, "float16", 0), (1.5, "bfloat16", 0x3FC0)],
)
def test_a_missing_array_is_all_fill(fill, dtype, expected):
    field = Array(".npy", shape=(2, 3), dtype=dtype, optional=True, fill=fill)
    assert field.fixed_shape
    found = field.missing_value(SampleContext())
    assert (found.shape, found.dtype) == ((2, 3), np.dtype("uint16" if dtype == "bfloat16" else dtype))
    assert (found == expected).all()


def test_a_missing_array_without_a_fill_is_none_in_a_list():
    for field in (Array(".npy", optional=True), Array(".npy", optional=True, ragged=True, dtype="int8")):
        assert not field.fixed_shape
        assert field.missing_value(SampleContext()) is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"fill": 0}, "is for samples that lack the part"),
        ({"fill": 0, "optional": True}, "fill needs the shape and the dtype"),
        ({"fill": 0, "optional": True, "dtype": "int8", "ragged": True}, "fill needs the shape and the dtype"),
        ({"fill": 300, "optional": True, "dtype": "uint8", "shape": (1,)}, "fill=300 is not a number of uint8"),
        ({"fill": 0.5, "optional": True, "dtype": "int64", "shape": (1,)}, "fill=0.5 is not a number of int64"),
        ({"fill": float("nan"), "optional": True, "dtype": "int64", "shape": (1,)}, "fill=nan is not a number"),
        ({"fill": 2**80, "optional": True, "dtype": "int64", "shape": (1,)}, "is not a number of int64"),
        ({"fill": 0.1, "optional": True, "dtype": "bfloat16", "shape": (1,)}, "fill=0.1 is not a number of bfloat16"),
        ({"dtype": "U5"}, "dtype 'U5' is not known"),
        ({"dtype": "longdouble"}, "dtype 'longdouble' is not known"),
    ],
)
def test_invalid_settings_of_optional_arrays_and_dtypes_are_refused(settings, reason):
    with pytest.raises(SettingError, match=reason):
        Array(".npy", **settings)


# -- in a loader ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shard(tmp_path):
    """Write a shard of these arrays; None is a sample that has only its number."""

    def make(arrays, suffix=".npy"):
        members = []
        for number, array in enumerate(arrays):
            members.append((f"{number:04}.cls", b"%d" % number))
            if array is not None:
                encode = saved if suffix == ".npy" else lambda array: npz(a=array)
                members.append((f"{number:04}{suffix}", bytes(encode(array))))
        path = tmp_path / "arrays.tar"
        path.write_bytes(tar_bytes(members))
        return path

    return make


FIELDS = {"x": Array(".npy"), "number": Label(".cls")}
ODD = [
    np.array(["abc"]),
    np.array([b"abc"]),
    np.zeros(1, np.longdouble),
    np.zeros(1, np.clongdouble),
    np.zeros(1, "V2"),
    np.zeros(1, [("x", "<f4")]),
    np.array([{}], object),
    np.zeros(1, "M8[s]"),
]


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("ragged", [False, True])
def test_odd_arrays_are_skipped_with_their_place_and_the_others_are_delivered(
    make_loader, shard, tmp_path, executor, device, ragged
):
    arrays = [np.full(1, number, ">f4" if number % 2 else "<f4") for number in range(8)]
    path = shard([*ODD, *arrays])
    bad = tmp_path / "bad.jsonl"
    settings = {"on_error": "skip", "max_bad_fraction": 1, "bad_samples_path": str(bad)}
    fields = FIELDS | {"x": Array(".npy", ragged=ragged)}
    loader = make_loader(path, fields, 4, executor=executor, device=device, **settings)
    batches = list(loader)
    found = np.concatenate([np.concatenate([*batch["x"]]) if ragged else batch["x"].reshape(-1) for batch in batches])
    assert found.tolist() == list(range(8))
    assert found.dtype.str == "<f4"
    assert loader.stats().bad == len(ODD)
    lines = [json.loads(line) for line in bad.read_text().splitlines()]
    assert [line["member"] for line in lines] == [f"{number:04}.npy" for number in range(len(ODD))]
    assert {line["shard"] for line in lines} == {str(path)}


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: str(odd.dtype))
def test_a_shard_of_odd_arrays_alone_is_an_error_with_shard_member_and_advice(make_loader, shard, odd):
    path = shard([odd, odd])
    with pytest.raises(SampleError) as caught:
        list(make_loader(path, FIELDS))
    assert (caught.value.shard, caught.value.member) == (str(path), "0000.npy")
    assert caught.value.advice
    assert caught.value.offset is not None


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_bfloat16_is_delivered_as_torch_bfloat16(make_loader, shard, executor, suffix):
    torch = pytest.importorskip("torch")
    path = shard([BITS.view("V2"), BITS[::-1].view("V2")], suffix)
    field = Array(suffix, "a" if suffix == ".npz" else None, dtype="bfloat16")
    (batch,) = make_loader(path, {"x": field}, executor=executor)
    expected = torch.from_numpy(np.stack((BFLOATS, BFLOATS[::-1]))).bfloat16()
    assert batch["x"].dtype == torch.bfloat16
    assert torch.equal(batch["x"], expected)
    (bits,) = make_loader(path, {"x": field}, device="numpy")
    assert (bits["x"].dtype, bits["x"].tolist()) == (np.uint16, [BITS.tolist(), BITS[::-1].tolist()])
    sample = ShardDataset(path, {"x": field})[1]["x"]
    assert torch.equal(sample, expected[1])
    (ragged,) = make_loader(path, {"x": replace(field, ragged=True)})
    assert ragged["x"][0].tolist() == BITS.tolist()


def test_bfloat16_is_delivered_in_static_buffers_and_in_the_order_of_a_sampler(make_loader, shard):
    torch = pytest.importorskip("torch")
    path = shard([BITS.view("V2"), BITS[::-1].view("V2")])
    fields = {"x": Array(".npy", dtype="bfloat16")}
    batches = make_loader(path, fields, None, batch_sampler=[[1], [0]], static_buffers=True)
    found = [(batch["x"].dtype, batch["x"][0].float().tolist()) for batch in batches]
    rounded = torch.from_numpy(BFLOATS).bfloat16().float().tolist()
    assert found == [(torch.bfloat16, rounded[::-1]), (torch.bfloat16, rounded)]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_samples_that_lack_an_array_get_the_fill_or_none(make_loader, shard, executor):
    path = shard([None, np.arange(3, dtype=np.float32), None])
    filled = Array(".npy", shape=(3,), dtype="float32", optional=True, fill=-1)
    (batch,) = make_loader(path, FIELDS | {"x": filled}, executor=executor)
    assert batch["x"].tolist() == [[-1, -1, -1], [0, 1, 2], [-1, -1, -1]]
    (batch,) = make_loader(path, FIELDS | {"x": Array(".npy", optional=True)}, executor=executor)
    assert [None if each is None else each.tolist() for each in batch["x"]] == [None, [0, 1, 2], None]


# -- what transforms and fields of the user return --------------------------------------------------------------------

TRANSFORMS = """
import numpy as np

def odd(sample, rng):
    n = int(sample["number"])
    return {
        "number": sample["number"],
        "big": np.arange(n, n + 2, dtype=">i4"),
        "text": np.array(f"text {n}"),
        "long": np.full(2, n, np.longdouble),
        "record": np.zeros(1, [("a", "<i4")]),
        "date": np.array("2020-01-01", "M8[D]"),
        "scalar": np.str_("x"),
    }

def bfloat(sample, rng):
    import torch
    return {"x": torch.zeros(2, dtype=torch.bfloat16)}
"""


@pytest.fixture
def transforms(tmp_path, monkeypatch):
    """A module that worker processes can import."""
    (tmp_path / "penstock_array_transforms.py").write_text(TRANSFORMS)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("penstock_array_transforms")
    del sys.modules["penstock_array_transforms"]


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_arrays_of_a_transform_that_no_tensor_can_hold_are_delivered_in_a_list(
    make_loader, shard, transforms, executor, device
):
    path = shard([np.zeros(1)] * 3)
    (batch,) = make_loader(path, FIELDS, transform=transforms.odd, executor=executor, device=device)
    assert batch["big"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert [str(text) for text in batch["text"]] == ["text 0", "text 1", "text 2"]
    assert [each.tolist() for each in batch["long"]] == [[0, 0], [1, 1], [2, 2]]
    assert {name for name, value in batch.items() if isinstance(value, list)} == {
        "text", "long", "record", "date", "scalar", "__key__",
    }  # fmt: skip


def test_a_dataset_of_shards_delivers_them_too(shard, transforms):
    path = shard([np.zeros(1)] * 3)
    sample = ShardDataset(path, FIELDS, transform=transforms.odd)[2]
    assert sample["big"].tolist() == [2, 3]
    assert str(sample["text"]) == "text 2"


def test_a_tensor_of_a_transform_that_numpy_does_not_have_is_an_error_of_the_sample(make_loader, shard, transforms):
    pytest.importorskip("torch")
    path = shard([np.zeros(1)] * 3)
    with pytest.raises(SampleError) as caught:
        list(make_loader(path, FIELDS, transform=transforms.bfloat))
    assert (caught.value.shard, caught.value.stage) == (str(path), "transform")


@pytest.mark.parametrize("outputs", ["U5", "longdouble", "nonsense", ">f4"])
def test_stated_outputs_of_a_dtype_that_no_tensor_has_are_refused(make_loader, shard, transforms, outputs):
    path = shard([np.zeros(1)] * 3)
    with pytest.raises(SettingError, match="is not a shape and a tensor's dtype"):
        list(make_loader(path, FIELDS, transform=transforms.odd, outputs={"big": ((2,), outputs)}))
