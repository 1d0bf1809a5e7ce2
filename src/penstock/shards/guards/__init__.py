"""Inspect the headers of parts before a decoder sees a byte: cheap checks that raise nothing but GuardError."""

from penstock.shards.guards.buffer import Buffer
from penstock.shards.guards.jpeg import JpegInfo, inspect_jpeg
from penstock.shards.guards.npy import NpyHeader, inspect_npy
from penstock.shards.guards.zip import ZipEntry, inspect_zip

__all__ = [
    "Buffer",
    "JpegInfo",
    "NpyHeader",
    "ZipEntry",
    "inspect_jpeg",
    "inspect_npy",
    "inspect_zip",
]
