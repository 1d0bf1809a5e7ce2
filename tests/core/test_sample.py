"""Parts and samples."""

from dataclasses import FrozenInstanceError

import pytest

from penstock.core.sample import Part, Sample

SAMPLE = Sample("0001", (Part(".jpg", 512, 100), Part("_features.npz", 2048, 7, crc32=0)))


def test_a_part_is_found_by_its_suffix():
    assert SAMPLE.part("_features.npz") == Part("_features.npz", 2048, 7, 0)


def test_a_part_that_is_not_there_is_none():
    assert SAMPLE.part(".npz") is None


def test_no_checksum_is_not_a_checksum_of_zero():
    assert SAMPLE.part(".jpg").crc32 is None
    assert SAMPLE.part("_features.npz").crc32 == 0


def test_items_can_be_keys_and_never_change():
    assert len({SAMPLE, Sample("0001", SAMPLE.parts)}) == 1
    with pytest.raises(FrozenInstanceError):
        SAMPLE.key = "0002"
