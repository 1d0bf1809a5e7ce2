"""Walking mutated tars ends, raises nothing but TarError, and returns only ranges within the data."""

import gzip
import io
import random
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile import GNU_MAGIC, base256, looping_tar, tar_header

from penstock.errors import TarError
from penstock.shards.codecs import zstd
from penstock.shards.open_shard import open_shard
from penstock.shards.tar import walk_tar
from penstock.shards.tar_header import TAR_BLOCK
from penstock.testing import corrupt

MUTANTS_PER_SEED = 10_000


class InMemory:
    """A source of bytes. It fails if it is read more often than a tar of that size has blocks."""

    def __init__(self, data):
        self.data = data
        self.end = len(data)
        self.reads_left = 2 * (len(data) // TAR_BLOCK) + 8

    def raw_reader(self):
        def read(rows, offset):
            data = io.BytesIO(self.read_at(offset, sum(map(len, rows))))
            return sum(map(data.readinto, rows))

        return read

    def read_at(self, offset, length):
        self.reads_left -= 1
        assert self.reads_left >= 0, "more reads than the tar has blocks"
        assert 0 <= offset < 1 << 63, "no file has such an offset"
        assert 0 <= length <= 1 << 20, "more than any header needs"
        return self.data[offset : offset + length]


def refused_or_sound(source):
    """Return whether the tar is refused; otherwise check that its members follow one another within the data.

    Only hard links share their data.
    """
    try:
        members = walk_tar(source, "fuzz.tar")
    except TarError:
        return True
    last = (-TAR_BLOCK, 0)
    for name, offset, length in zip(members.names, members.offsets, members.lengths, strict=True):
        assert (offset, length) == last or sum(last) + TAR_BLOCK <= offset <= offset + length <= source.end
        assert length == 0 or offset not in members.unreadable
        name.encode()
        last = (offset, length)
    return False


def written_by_tarfile(tar_format, *members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for name, size in members:
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(b"x" * size))
        end = tar.offset  # without the padding to a record, so that most mutations change something relevant
    return buffer.getvalue()[: end + 2 * TAR_BLOCK]


SEEDS = {
    "one plain": written_by_tarfile(tarfile.USTAR_FORMAT, ("0001.jpg", 600)),
    "three plain": written_by_tarfile(tarfile.USTAR_FORMAT, ("0001.jpg", 3), ("0001.npz", 512), ("0002.jpg", 0)),
    "prefix": written_by_tarfile(tarfile.USTAR_FORMAT, ("f" * 90 + "/" + "n" * 90, 10), ("0001.npz", 7)),
    "gnu long name": written_by_tarfile(tarfile.GNU_FORMAT, ("0001.jpg", 5), ("n" * 130 + ".jpg", 5), ("0002.jpg", 5)),
    "pax long name": written_by_tarfile(tarfile.PAX_FORMAT, ("0001.jpg", 5), ("n" * 130 + ".jpg", 5), ("0002.jpg", 5)),
    "pax of another alphabet": written_by_tarfile(tarfile.PAX_FORMAT, ("图片.jpg", 700), ("0002.jpg", 5)),
    "base-256 size": tar_header("a.jpg", raw_size=base256(5)) + b"12345".ljust(TAR_BLOCK, b"\0") + bytes(2 * TAR_BLOCK),
    "hard links": tar_header("a.jpg", 3)
    + b"abc".ljust(TAR_BLOCK, b"\0")
    + b"".join(tar_header(f"{target}2", typeflag=b"1", link=target) for target in ("a.jpg", "a.jpg2", "missing"))
    + bytes(2 * TAR_BLOCK),
    "sparse": b"".join(
        tar_header(name, 5, typeflag=b"S", magic=GNU_MAGIC) + b"12345".ljust(TAR_BLOCK, b"\1") for name in "ab"
    )
    + bytes(2 * TAR_BLOCK),
    "concatenated": 2 * written_by_tarfile(tarfile.USTAR_FORMAT, ("0001.jpg", 5)),
    "looping": looping_tar() + bytes(2 * TAR_BLOCK),
}


def header_offsets(data):
    return [start for start in range(0, len(data), TAR_BLOCK) if data[start + 257 : start + 262] == b"ustar"]


def with_valid_checksums(data, headers):
    """Correct the checksums of the headers at these offsets, so that they are parsed."""
    for start in headers:
        if start + TAR_BLOCK <= len(data):
            blank = data[start : start + 148] + b" " * 8 + data[start + 156 : start + TAR_BLOCK]
            data = data[: start + 148] + b"%06o\0 " % sum(blank) + data[start + 156 :]
    return data


def mutant(seed, headers, rng):
    """Return a mutated tar.

    A third of the mutants are changed anywhere, a third anywhere but with valid checksums, and a third near the size,
    the checksum and the type of a header or at the start of its data, also with valid checksums.
    """
    kind = rng.randrange(3)
    if kind == 0:
        return corrupt.mutate(seed, rng)
    if kind == 1:
        return with_valid_checksums(corrupt.mutate(seed, rng), headers)
    start = rng.choice(headers) + rng.choice((124, 124, 150, TAR_BLOCK))
    mutated = seed[:start] + corrupt.mutate(seed[start : start + 32], rng) + seed[start + 32 :]
    return with_valid_checksums(mutated, headers)


@pytest.mark.parametrize("name", SEEDS)
def test_a_mutated_tar_raises_nothing_but_tar_errors(name):
    seed = SEEDS[name]
    assert refused_or_sound(InMemory(seed)) == (name == "looping")
    headers, rng = header_offsets(seed), random.Random(name)
    refused = sum(refused_or_sound(InMemory(mutant(seed, headers, rng))) for _ in range(MUTANTS_PER_SEED))
    assert refused > 0.2 * MUTANTS_PER_SEED
    assert refused < MUTANTS_PER_SEED or name == "looping"


def test_the_seeds_give_enough_cases():
    assert len(SEEDS) * MUTANTS_PER_SEED >= 60_000


@pytest.mark.parametrize(("ending", "pack"), [(".tar.gz", gzip.compress), (".tar.zst", zstd.compress)])
def test_a_mutated_compressed_tar_raises_nothing_but_tar_errors(tmp_path, ending, pack):
    rng = random.Random(ending)
    path = tmp_path / f"a{ending}"
    packed = pack(SEEDS["pax long name"])
    refused = 0
    for _ in range(1_000):
        path.write_bytes(corrupt.mutate(packed, rng))
        with open_shard(path) as source:
            refused += refused_or_sound(source)
    assert refused > 500


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=3000))
def test_random_bytes_are_refused_or_read(data):
    refused_or_sound(InMemory(data))


RAW_SIZES = st.binary(min_size=12, max_size=12) | st.integers(-(2**80), 2**94 - 1).map(base256)
HEADERS = st.builds(
    tar_header,
    st.text(st.characters(codec="ascii"), max_size=20) | st.sampled_from("ab"),
    link=st.sampled_from("ab"),
    typeflag=st.sampled_from([bytes((kind,)) for kind in b"\x000123456789xgXLKSMVN"]),
    raw_size=RAW_SIZES | st.integers(0, 2000).map(lambda size: b"%011o\0" % size),
)
RECORDS = st.builds(
    lambda length, keyword, value: b"%d %s=%s\n" % (length, keyword, value),
    st.integers(-5, 40),
    st.sampled_from([b"path", b"size", b"GNU.sparse.map", b"", b"mtime"]),
    st.binary(max_size=20),
)
BLOCKS = (
    HEADERS
    | RECORDS.map(lambda record: record.ljust(TAR_BLOCK, b"\0"))
    | st.just(bytes(TAR_BLOCK))
    | st.binary(max_size=TAR_BLOCK)
)


@settings(deadline=None, max_examples=500)
@given(st.lists(BLOCKS, max_size=8).map(b"".join))
def test_any_sequence_of_headers_is_refused_or_read(data):
    refused_or_sound(InMemory(data))
