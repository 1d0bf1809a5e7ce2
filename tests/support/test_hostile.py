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

COUNT_MEMBERS = """
import io, itertools, tarfile
from tests.support import hostile
try:
    members = tarfile.open(fileobj=io.BytesIO(hostile.looping_tar()))
    print(sum(1 for _ in itertools.islice(members, 1500)))
except tarfile.TarError as error:
    print("refused:", error)
"""


def test_a_correct_header_is_read_by_tarfile():
    data = hostile.tar_header("name.jpg", 5, prefix="folder") + b"hello".ljust(512, b"\0")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        [member] = tar.getmembers()
        assert (member.name, member.size) == ("folder/name.jpg", 5)
        assert tar.extractfile(member).read() == b"hello"


@pytest.mark.parametrize("magic", [hostile.USTAR_MAGIC, hostile.GNU_MAGIC])
@pytest.mark.parametrize("size", [0, 8 << 30, -512, -1])
def test_tarfile_reads_binary_sizes_as_the_given_numbers(size, magic):
    header = hostile.tar_header("a", raw_size=hostile.base256(size), magic=magic)
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == size


def test_tarfile_refuses_a_header_with_a_false_checksum():
    header = hostile.tar_header("a", checksum=b"0000001\0")
    assert len(header) == 512
    with pytest.raises(tarfile.HeaderError, match="bad checksum"):
        tarfile.TarInfo.frombuf(header, "utf-8", "strict")


def test_a_value_that_is_too_long_for_its_header_field_is_refused():
    with pytest.raises(SettingError, match="does not fit"):
        hostile.tar_header("x" * 101)


def test_the_looping_tar_makes_tarfile_loop_forever():
    assert len(hostile.looping_tar()) == 1024
    command = [sys.executable, "-c", COUNT_MEMBERS]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    looped = child.stdout.strip() == "1500"
    if not looped and sys.version_info > (3, 11, 7, "final"):
        pytest.skip(f"tarfile of Python {sys.version.split()[0]} no longer loops: {child.stdout.strip()}")
    assert looped, child.stdout


def test_a_jpeg_has_the_requested_number_of_scans_and_can_be_decoded():
    data = hostile.jpeg_with_scans(40)
    assert data.count(b"\xff\xda") == 40
    with Image.open(io.BytesIO(data)) as image:
        assert image.info["progressive"]
        assert image.getextrema() == (128, 128)


def test_a_jpeg_with_ten_thousand_scans_is_small():
    assert len(hostile.jpeg_with_scans(10_000)) < 200_000


def test_jpeg_headers_state_the_given_size():
    huge = hostile.jpeg_of_size(65500, 65500)
    assert simplejpeg.decode_jpeg_header(huge)[:2] == (65500, 65500)
    assert len(huge) < 200
    assert simplejpeg.decode_jpeg_header(hostile.lossless_jpeg(64, 48))[:2] == (48, 64)
    assert simplejpeg.decode_jpeg_header(hostile.twelve_bit_jpeg(64, 48))[:2] == (48, 64)


def test_lossless_and_twelve_bit_jpegs_have_the_frame_of_their_kind():
    lossless, twelve_bit = hostile.lossless_jpeg(64, 48), hostile.twelve_bit_jpeg(64, 48)
    assert b"\xff\xc3\x00\x0b\x08" in lossless
    assert b"\xff\xc1\x00\x0b\x0c" in twelve_bit


def test_an_npy_header_states_the_given_shape():
    correct = hostile.npy_claiming((2, 3), "<f4", bytes(24))
    assert np.load(io.BytesIO(correct), allow_pickle=False).shape == (2, 3)
    false = hostile.npy_claiming((1 << 40,), "<f4", bytes(24))
    assert np.lib.format.read_magic(stream := io.BytesIO(false)) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream)[0] == (1 << 40,)


def test_the_zip_bomb_inflates_to_about_a_thousand_times_its_size():
    data = hostile.zip_bomb_npz(4 << 20)
    with np.load(io.BytesIO(data), allow_pickle=False) as npz:
        assert npz["features"].nbytes == 4 << 20
    assert (4 << 20) / len(data) > 900


def test_the_second_entry_of_the_overlapping_npz_lies_inside_the_first():
    data = hostile.overlapping_npz()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        outer, inner = archive.infolist()
    assert outer.header_offset < inner.header_offset < outer.header_offset + outer.compress_size
    assert data[inner.header_offset :].startswith(b"PK\x03\x04")
    assert data[inner.header_offset + 30 :].startswith(b"inner.npy")


def test_zipfile_requires_a_password_for_the_encrypted_entry():
    with (
        zipfile.ZipFile(io.BytesIO(hostile.encrypted_npz())) as archive,
        pytest.raises(RuntimeError, match="encrypted"),
    ):
        archive.read("features.npy")


def test_numpy_refuses_the_pickle_without_allow_pickle():
    with (
        np.load(io.BytesIO(hostile.pickle_npz()), allow_pickle=False) as npz,
        pytest.raises(ValueError, match="allow_pickle"),
    ):
        npz["features"]
