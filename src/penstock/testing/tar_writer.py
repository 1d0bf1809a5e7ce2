"""Writing tar shards that come out the same every time: no clock, no user, no host in them."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Literal, cast

from penstock.shards.codecs.zstd import ZstdFile

Compression = Literal["gz", "zst"]


def tar_bytes(members: Iterable[tuple[str, bytes]]) -> bytes:
    """A plain tar of these (name, data) in this order; long names as GNU tar writes them."""
    buffer = io.BytesIO()
    _write(buffer, members)
    return buffer.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], compression: Compression | None) -> None:
    """The same into a file, member by member, compressed as a whole if asked to."""
    with path.open("wb") as file:
        if compression is None:
            _write(file, members)
        elif compression == "gz":
            with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0) as packed:
                _write(cast(IO[bytes], packed), members)
        else:
            with ZstdFile(file, mode="wb", level=1) as packed:
                _write(cast(IO[bytes], packed), members)


def _write(file: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
