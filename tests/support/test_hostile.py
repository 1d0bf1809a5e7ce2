from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from penstock.errors import SettingError
from tests.support import hostile

LOOP = """
import io, itertools, tarfile
from tests.support import hostile
try:
    members = tarfile.open(fileobj=io.BytesIO(hostile.looping_tar()))
    print(sum(1 for _ in itertools.islice(members, 1500)))
except tarfile.TarError as error:
    print("refused:", error)
"""


def test_an_honest_header_is_read_by_tarfile():
    data = hostile.tar_header("name.jpg", 5, prefix="folder") + b"hello".ljust(512, b"\0")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        [member] = tar.getmembers()
        assert (member.name, member.size) == ("folder/name.jpg", 5)
        assert tar.extractfile(member).read() == b"hello"


@pytest.mark.parametrize("magic", [hostile.USTAR_MAGIC, hostile.GNU_MAGIC])
@pytest.mark.parametrize("size", [0, 8 << 30, -512, -1])
def test_binary_sizes_are_understood_as_meant(size, magic):
    header = hostile.tar_header("a", raw_size=hostile.base256(size), magic=magic)
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == size


def test_a_wrong_checksum_is_wrong():
    header = hostile.tar_header("a", checksum=b"0000001\0")
    assert len(header) == 512
    with pytest.raises(tarfile.HeaderError, match="bad checksum"):
        tarfile.TarInfo.frombuf(header, "utf-8", "strict")


def test_a_field_that_does_not_fit_is_refused():
    with pytest.raises(SettingError, match="does not fit"):
        hostile.tar_header("x" * 101)


def test_the_looping_tar_makes_stdlib_tarfile_go_round():
    assert len(hostile.looping_tar()) == 1024
    child = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, timeout=60, check=True)
    looped = child.stdout.strip() == "1500"
    if not looped and sys.version_info > (3, 11, 7, "final"):
        pytest.skip(f"tarfile of Python {sys.version.split()[0]} no longer goes round: {child.stdout.strip()}")
    assert looped, child.stdout


def test_a_jpeg_has_the_scans_asked_for_and_decodes():
    data = hostile.jpeg_with_scans(40)
    assert data.count(b"\xff\xda") == 40
    with Image.open(io.BytesIO(data)) as image:
        assert image.info["progressive"]
        assert image.getextrema() == (128, 128)


def test_thousands_of_scans_fit_in_little_space():
    assert len(hostile.jpeg_with_scans(10_000)) < 200_000


def test_headers_claim_what_they_were_told_to():
    huge = hostile.jpeg_of_size(65500, 65500)
    assert simplejpeg.decode_jpeg_header(huge)[:2] == (65500, 65500)
    assert len(huge) < 200
    assert simplejpeg.decode_jpeg_header(hostile.lossless_jpeg(64, 48))[:2] == (48, 64)
    assert simplejpeg.decode_jpeg_header(hostile.twelve_bit_jpeg(64, 48))[:2] == (48, 64)


def test_frames_are_of_the_kind_they_are_named_after():
    lossless, deep = hostile.lossless_jpeg(64, 48), hostile.twelve_bit_jpeg(64, 48)
    assert b"\xff\xc3\x00\x0b\x08" in lossless
    assert b"\xff\xc1\x00\x0b\x0c" in deep


def test_an_npy_claims_what_it_was_told_to():
    honest = hostile.npy_claiming((2, 3), "<f4", bytes(24))
    assert np.load(io.BytesIO(honest), allow_pickle=False).shape == (2, 3)
    liar = hostile.npy_claiming((1 << 40,), "<f4", bytes(24))
    assert np.lib.format.read_magic(stream := io.BytesIO(liar)) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream)[0] == (1 << 40,)


def test_the_zip_bomb_is_a_thousand_times_smaller_than_what_it_holds():
    data = hostile.zip_bomb_npz(4 << 20)
    with np.load(io.BytesIO(data), allow_pickle=False) as npz:
        assert npz["features"].nbytes == 4 << 20
    assert (4 << 20) / len(data) > 900


def test_the_overlapping_entry_lies_within_the_data_of_the_other():
    data = hostile.overlapping_npz()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        outer, inner = archive.infolist()
    assert outer.header_offset < inner.header_offset < outer.header_offset + outer.compress_size
    assert data[inner.header_offset :].startswith(b"PK\x03\x04")
    assert data[inner.header_offset + 30 :].startswith(b"inner.npy")


def test_the_encrypted_entry_asks_for_a_password():
    with (
        zipfile.ZipFile(io.BytesIO(hostile.encrypted_npz())) as archive,
        pytest.raises(RuntimeError, match="encrypted"),
    ):
        archive.read("features.npy")


def test_the_pickle_is_refused_by_numpy_unless_asked():
    with (
        np.load(io.BytesIO(hostile.pickle_npz()), allow_pickle=False) as npz,
        pytest.raises(ValueError, match="allow_pickle"),
    ):
        npz["features"]
