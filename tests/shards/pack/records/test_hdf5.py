import io
import json

import h5py
import numpy as np
import pytest
from PIL import Image
from tests.support.record_files import encoded_image, labelled_images, write_hdf5

from penstock.errors import DecodeError, SampleError, SettingError, ShardError
from penstock.shards.codecs.arrays import decode_npy
from penstock.shards.pack.records import hdf5

IMAGES = [encoded_image(number) for number in range(3)]


def columns_of(source):
    return {column.name: (column.role, column.suffix) for column in source.reader.columns}


def test_datasets_become_parts_by_the_rule(tmp_path, read_records):
    path = write_hdf5(
        tmp_path / "a.h5",
        {
            "group/image": IMAGES,
            "label": np.array([[4], [5], [6]], np.int32),
            "text": np.array(["ä", "b", "c"], h5py.string_dtype()),
            "feature": np.arange(6, dtype=np.float32).reshape(3, 2),
            "score": np.array([0.5, 1.5, 2.5]),
            "blob": [b"\0x", b"y", b"z\0"],
        },
    )
    first = read_records(path)[0]
    assert json.loads(first.pop(".json")) == {"score": 0.5}
    assert decode_npy(first.pop(".npy")).tolist() == [0, 1]
    assert first == {".jpg": IMAGES[0], ".cls": b"4", ".txt": "ä".encode(), ".bin": b"\0x"}


@pytest.mark.parametrize(
    "pixels",
    [
        np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4),
        np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3),
        np.arange(2 * 3 * 4 * 1, dtype=np.uint8).reshape(2, 3, 4, 1),
        np.arange(2 * 3 * 4, dtype=np.uint16).reshape(2, 3, 4) * 2000,
    ],
    ids=lambda pixels: f"{pixels.dtype}{pixels.shape}",
)
def test_pixels_become_a_png_without_loss(tmp_path, read_records, pixels):
    read = read_records(write_hdf5(tmp_path / "a.h5", {"images": pixels, "labels": np.array([1, 2])}))
    for parts, original in zip(read, pixels, strict=True):
        with Image.open(io.BytesIO(parts[".png"])) as image:
            assert np.array_equal(np.array(image), original.squeeze())


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 8, 8, 2), (2, 8, 8, 8, 3)])
def test_arrays_of_other_shapes_stay_arrays(tmp_path, read_records, shape):
    values = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    read = read_records(write_hdf5(tmp_path / "a.h5", {"x": values}))
    assert [np.array_equal(decode_npy(parts[".npy"]), value) for parts, value in zip(read, values, strict=True)] == [
        True,
        True,
    ]


def test_pixels_are_kept_as_an_array_if_the_role_is_stated(tmp_path, read_records):
    path = write_hdf5(tmp_path / "a.h5", {"x": np.ones((1, 4, 4, 3), np.uint8)})
    assert read_records(path, columns=(("x", "array"),))[0].keys() == {".npy"}


def test_images_in_strings_of_fixed_length_are_read_if_they_cannot_end_in_zeros(tmp_path, read_records):
    path = write_hdf5(tmp_path / "a.h5", {"image": np.array(IMAGES, "S2000")})
    assert read_records(path) == [{".jpg": image} for image in IMAGES]


def test_images_that_may_have_lost_zeros_are_bad(tmp_path, read_records):
    images = [IMAGES[0], encoded_image(1, "BMP")]
    good, bad = read_records(write_hdf5(tmp_path / "a.h5", {"image": np.array(images, "S2000")}))
    assert good == {".jpg": IMAGES[0]}
    assert "does not keep zeros" in bad.reason


def test_opaque_values_keep_all_bytes(tmp_path, read_records):
    path = write_hdf5(tmp_path / "a.h5", {"x": np.array([b"ab\0\0", b"\0\0\0\0"], "V4")})
    assert read_records(path) == [{".bin": b"ab\0\0"}, {".bin": bytes(4)}]


def test_entries_of_variable_length_can_be_arrays(tmp_path, read_records):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (2,), h5py.vlen_dtype(np.float32))
        dataset[0], dataset[1] = np.array([1, 2], np.float32), np.array([3], np.float32)
    assert [decode_npy(parts[".npy"]).tolist() for parts in read_records(tmp_path / "a.h5")] == [[1, 2], [3]]


def test_datasets_of_another_length_are_refused_unless_they_are_not_chosen(tmp_path, sources_of):
    datasets = {"train_x": IMAGES, "train_y": np.arange(3), "test_x": IMAGES[:2], "test_y": np.arange(2)}
    path = write_hdf5(tmp_path / "a.h5", datasets)
    with pytest.raises(SettingError, match=r"'train_x' has 3 entries where 'test_x' has 2") as caught:
        sources_of(path)
    assert caught.value.advice == "Name the columns to pack: --column test_x --column test_y"
    (source,) = sources_of(path, columns=(("train_x", None), ("train_y", "label")))
    assert columns_of(source) == {"train_x": ("image", ""), "train_y": ("label", ".cls")}
    assert len(source.index) == 3


def add_external(file):
    file.create_dataset("secret", (2,), "u1", external=[("/etc/passwd", 0, 2)])


def add_virtual(file):
    layout = h5py.VirtualLayout((2,), "u1")
    layout[:] = h5py.VirtualSource("other.h5", "x", shape=(2,))
    file.create_virtual_dataset("secret", layout)


def add_external_link(file):
    file["secret"] = h5py.ExternalLink("other.h5", "x")


def add_soft_link(file):
    file["secret"] = h5py.SoftLink("/x")


def add_compound(file):
    file["secret"] = np.zeros(2, [("a", "i4"), ("b", "f4")])


def add_reference(file):
    file.create_dataset("secret", (2,), h5py.ref_dtype)


def add_scalar(file):
    file["secret"] = 5


def add_unknown_type(file):
    odd = h5py.h5t.IEEE_F64LE.copy()
    odd.set_size(32)
    odd.set_precision(256)
    odd.set_fields(255, 200, 55, 0, 200)
    h5py.h5d.create(file.id, b"secret", odd, h5py.h5s.create_simple((2,)))


def add_missing_filter(file):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((2,))
    properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL)
    h5py.h5d.create(file.id, b"secret", h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple((2,)), properties)


def add_long_double(file):
    file["secret"] = np.zeros(2, np.longdouble)


def add_huge_chunks(file):
    file.create_dataset("secret", (2, 2**31), "u1", chunks=(1, 2**31))


@pytest.mark.parametrize(
    "add",
    [
        add_external,
        add_virtual,
        add_external_link,
        add_soft_link,
        add_compound,
        add_reference,
        add_scalar,
        add_unknown_type,
        add_missing_filter,
        pytest.param(
            add_long_double, marks=pytest.mark.skipif(np.longdouble().itemsize == 8, reason="has 8 bytes here")
        ),
        add_huge_chunks,
    ],
)
def test_datasets_that_cannot_be_packed_are_refused(tmp_path, sources_of, add):
    path = write_hdf5(tmp_path / "a.h5", {"x": np.zeros((2, 4, 4), np.uint8)})
    with h5py.File(path, "a") as file:
        add(file)
    with pytest.raises(SettingError, match="column 'secret'") as caught:
        sources_of(path)
    assert caught.value.advice.endswith("--column x")
    (source,) = sources_of(path, columns=(("x", None),))
    assert len(source.index) == 2


def test_a_later_file_cannot_bring_in_external_data(tmp_path, sources_of):
    write_hdf5(tmp_path / "a.h5", {"x": np.zeros(2, np.uint8)})
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", (2,), "u1", external=[("/etc/passwd", 0, 2)])
    with pytest.raises(ShardError, match="other files") as caught:
        sources_of(tmp_path)
    assert caught.value.shard == str(tmp_path / "b.h5")


def test_a_damaged_chunk_costs_its_entries_only(tmp_path, read_records):
    pixels = np.random.default_rng(0).integers(0, 255, (8, 16, 16), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=pixels, chunks=(2, 16, 16), fletcher32=True)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    at = data.index(pixels[5].tobytes())
    data[at] ^= 1
    (tmp_path / "a.h5").write_bytes(data)
    read = read_records(tmp_path / "a.h5")
    assert [isinstance(parts, DecodeError) for parts in read] == [number in (4, 5) for number in range(8)]


def test_chosen_entries_are_read_whether_neighbours_or_not(tmp_path, sources_of, monkeypatch):
    monkeypatch.setattr(hdf5, "BATCH_BYTES", 3)
    (source,) = sources_of(write_hdf5(tmp_path / "a.h5", {"label": np.arange(20, dtype=np.uint8)}))
    for rows in ([0], [0, 1, 2, 3, 4, 5, 6], [3, 4, 9, 19], [], list(range(20))):
        read = source.reader.read(source.path, source.select(rows).samples)
        assert list(read) == [[(".cls", str(row).encode())] for row in rows]


@pytest.mark.parametrize("data", [b"", b"\x89HDF\r\n\x1a\n", b"<html>"])
def test_a_file_that_is_no_hdf5_is_an_error_with_its_name(tmp_path, sources_of, data):
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(ShardError, match="HDF5") as caught:
        sources_of(tmp_path / "a.h5")
    assert caught.value.shard == str(tmp_path / "a.h5")


def test_a_file_without_datasets_is_refused(tmp_path, sources_of):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("empty")
        file["type"] = np.dtype("f4")
    with pytest.raises(SettingError, match="no datasets"):
        sources_of(tmp_path / "a.h5")


def test_a_count_that_the_file_cannot_hold_is_refused_before_memory_is_allocated(tmp_path, sources_of):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (2**40,), "u1", chunks=(1024,))
    with pytest.raises(ShardError, match="1099511627776 records"):
        sources_of(tmp_path / "a.h5")


def test_a_file_that_is_cut_short_is_an_error(tmp_path, sources_of):
    images, labels = zip(*labelled_images(10), strict=True)
    path = write_hdf5(tmp_path / "a.h5", {"images": list(images), "labels": np.array(labels)})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ShardError, match="HDF5"):
        sources_of(path)


def test_a_bad_entry_is_bad_and_its_neighbours_are_not(tmp_path, read_records):
    first, second, third = read_records(write_hdf5(tmp_path / "a.h5", {"image": [IMAGES[0], b"<html>", IMAGES[2]]}))
    assert (first, third) == ({".jpg": IMAGES[0]}, {".jpg": IMAGES[2]})
    assert isinstance(second, SampleError)
