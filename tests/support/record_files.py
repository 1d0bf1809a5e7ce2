"""Writers of the dataset formats that `penstock shards pack` reads: images with labels, as other libraries write them.

Parquet, LMDB and HDF5 are written by their own libraries. TFRecord and MDS are written by hand, since their libraries
need TensorFlow and torch; the bytes were compared with those that TensorFlow 2.21 and MDSWriter 0.13 write.
"""

import io
import json
import struct

import google_crc32c
import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from penstock.shards.codecs.zstd import compress

CLASSES = ["ant", "bee", "cat"]
HUGGING_FACE = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}}}


def encoded_image(number, kind="JPEG", size=(8, 6)):
    """Return an image file whose pixels depend on the number."""
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def labelled_images(count):
    """Return (image file, label) pairs; every third image is a PNG."""
    kinds = ("JPEG", "JPEG", "PNG")
    return [(encoded_image(number, kinds[number % 3]), number % len(CLASSES)) for number in range(count)]


def ending(data):
    """Return the suffix that an image is packed with."""
    return ".jpg" if data.startswith(b"\xff\xd8") else ".png"


# -- Parquet -----------------------------------------------------------------------------------------------------------


def write_parquet(path, columns, schema=None, features=None, **options):
    """Write a Parquet file of columns, with the metadata of Hugging Face if features are given."""
    table = pa.table(columns, schema=schema)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, path, **options)
    return path


def write_hugging_face(path, samples, **options):
    """Write images and labels as `datasets` does: structs of bytes and path, and the names of the classes."""
    images = [{"bytes": image, "path": None} for image, _ in samples]
    columns = {
        "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "label": pa.array([label for _, label in samples], pa.int64()),
    }
    return write_parquet(path, columns, features=HUGGING_FACE, **{"row_group_size": 7, **options})


# -- TFRecord ----------------------------------------------------------------------------------------------------------


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(number, data):
    """Return a field with the bytes of a string or of another message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values):
    """Return a `tf.train.Feature` of bytes, floats or integers."""
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return message(1, b"".join(message(1, value) for value in values))
    if isinstance(values[0], float):
        return message(2, message(1, struct.pack(f"<{len(values)}f", *values)))
    return message(3, message(1, b"".join(map(varint, values))))


def example(features):
    """Return a `tf.train.Example` of lists of values by name, with sorted names."""
    entries = (message(1, message(1, name.encode()) + message(2, feature(features[name]))) for name in sorted(features))
    return message(1, b"".join(entries))


def masked_crc(data):
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord(data):
    """Return one record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def write_tfrecord(path, examples):
    path.write_bytes(b"".join(tfrecord(example(features)) for features in examples))
    return path


# -- MDS ---------------------------------------------------------------------------------------------------------------


def mds_shard(config, samples):
    """Return a shard: the number of samples, their offsets, the configuration, and the encoded samples."""
    begin = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = begin + np.cumsum([0, *map(len, samples)])
    return struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + config + b"".join(samples)


def mds_sample(values, sizes):
    """Return a sample of encoded values; columns without a fixed size have theirs in front."""
    stated = [len(value) for value, size in zip(values, sizes, strict=True) if size is None]
    return struct.pack(f"<{len(stated)}I", *stated) + b"".join(values)


MDS_SIZES = {"int": 8, "uint8": 1, "int64": 8, "float32": 4, "ndarray:float32:2,2": 16}


def write_mds(folder, columns, rows, per_shard=10, compression=None):
    """Write rows of encoded values, by column, as an MDS dataset; `columns` are the encodings."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    sizes = [MDS_SIZES.get(columns[name]) for name in names]
    facts = {"version": 2, "format": "mds", "compression": compression, "hashes": [], "size_limit": 1 << 26}
    described = {
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": sizes,
    }
    config = json.dumps({**facts, **described}, sort_keys=True).encode()
    shards = []
    for number, first in enumerate(range(0, len(rows), per_shard)):
        chosen = rows[first : first + per_shard]
        data = mds_shard(config, [mds_sample([row[name] for name in names], sizes) for row in chosen])
        name, zip_data = f"shard.{number:05d}.mds", None
        raw_data = {"basename": name, "bytes": len(data), "hashes": {}}
        if compression:
            name, data = name + ".zstd", compress(data)
            zip_data = {"basename": name, "bytes": len(data), "hashes": {}}
        (folder / name).write_bytes(data)
        shards.append({**facts, **described, "samples": len(chosen), "raw_data": raw_data, "zip_data": zip_data})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}, sort_keys=True))
    return folder


def int64(value):
    return struct.pack("<q", value)


# -- LMDB and HDF5 -----------------------------------------------------------------------------------------------------


def write_lmdb(path, values, **options):
    """Write the values of a dict by their keys."""
    with lmdb.open(str(path), map_size=1 << 30, **options) as environment, environment.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key if isinstance(key, bytes) else key.encode(), value)
    return path


def write_hdf5(path, datasets):
    """Write datasets; a list of bytes becomes entries of variable length."""
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            if isinstance(values, list) and values and isinstance(values[0], bytes):
                dataset = file.create_dataset(name, (len(values),), h5py.vlen_dtype(np.uint8))
                for number, value in enumerate(values):
                    dataset[number] = np.frombuffer(value, np.uint8)
            else:
                file.create_dataset(name, data=values)
    return path


# -- every format ------------------------------------------------------------------------------------------------------


def write_class_folders(folder, samples):
    for number, (image, label) in enumerate(samples):
        path = folder / CLASSES[label] / f"image {number:05d}{ending(image)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    return folder


def write_samples(source, folder, samples):
    """Write images with labels in one of the formats; return what `penstock shards pack` is given as its source."""
    if source == "folders":
        return write_class_folders(folder / "classes", samples)
    folder.mkdir(parents=True, exist_ok=True)
    half = len(samples) // 2
    if source == "parquet":
        write_hugging_face(folder / "train-00000-of-00002.parquet", samples[:half])
        write_hugging_face(folder / "train-00001-of-00002.parquet", samples[half:])
        return folder
    if source == "tfrecord":
        examples = [{"image/encoded": [image], "image/class/label": [label]} for image, label in samples]
        write_tfrecord(folder / "train-00000-of-00002", examples[:half])
        write_tfrecord(folder / "train-00001-of-00002", examples[half:])
        return folder
    if source in ("mds", "mds.zstd"):
        rows = [{"image": image, "label": int64(label)} for image, label in samples]
        return write_mds(
            folder / "mds", {"image": "bytes", "label": "int"}, rows, half, "zstd" if source == "mds.zstd" else None
        )
    if source == "lmdb":
        values = {}
        for number, (image, label) in enumerate(samples):
            values[f"{number:06d}{ending(image)}"] = image
            values[f"{number:06d}.cls"] = str(label).encode()
        return write_lmdb(folder / "data", values)
    assert source == "hdf5"
    images, labels = zip(*samples, strict=True)
    return write_hdf5(folder / "data.h5", {"images": list(images), "labels": np.array(labels)})


SOURCES = ("folders", "parquet", "tfrecord", "mds", "mds.zstd", "lmdb", "hdf5")
