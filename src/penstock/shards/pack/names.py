"""What parts are called in a packed shard.

webdataset pairs by what comes before the first dot, so `0001_features.npz` is renamed to `0001.features.npz`, and its
array `edge` stored alone becomes `0001.features.edge.npy`.
"""

from __future__ import annotations

from urllib.parse import quote

from penstock.shards.pack.options import ArrayCodec


def packed_key(key: str) -> str:
    """A key with no dot in its last component: the first dot must be where the suffix starts."""
    folder, slash, base = key.rpartition("/")
    return folder + slash + base.replace(".", "%2E")


def packed_suffix(suffix: str) -> str:
    """The suffix a part gets when its bytes are kept."""
    return "." + suffix[1:] if suffix.startswith("_") else suffix


def array_suffix(suffix: str, array: str, codec: ArrayCodec) -> str:
    """The suffix of one array of an NPZ part stored on its own."""
    stem = packed_suffix(suffix)[: -len(".npz")]
    return f"{stem}.{quote(array, safe='')}.npy" + (".zst" if codec == "zstd" else "")
