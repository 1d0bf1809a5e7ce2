"""Decode parts to arrays, and encode arrays, after the guards have inspected them."""

from penstock.shards.codecs.arrays import decode_npy, decode_npy_zst, decode_npz, encode_npy
from penstock.shards.codecs.by_suffix import codec_of, verify_part
from penstock.shards.codecs.images import decode_jpeg, encode_jpeg, shrink_jpeg
from penstock.shards.codecs.zstd import compress, decompress

__all__ = [
    "codec_of",
    "compress",
    "decode_jpeg",
    "decode_npy",
    "decode_npy_zst",
    "decode_npz",
    "decompress",
    "encode_jpeg",
    "encode_npy",
    "shrink_jpeg",
    "verify_part",
]
