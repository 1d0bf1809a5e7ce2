"""Parts and samples."""

from dataclasses import FrozenInstanceError

import pytest

from penstock.core.sample import Part, Sample

SAMPLE = Sample("0001", (Part(".jpg", 512, 100), Part("_features.npz", 2048, 7, crc32=0)))


def test_a_part_is_found_by_its_suffix():
    assert SAMPLE.part("_features.npz") == Part("_features.npz", 2048, 7, 0)


def test_a_missing_part_is_none():
    assert SAMPLE.part(".npz") is None


def test_a_missing_checksum_is_not_zero():
    assert SAMPLE.part(".jpg").crc32 is None
    assert SAMPLE.part("_features.npz").crc32 == 0


def test_samples_are_hashable_and_immutable():
    assert len({SAMPLE, Sample("0001", SAMPLE.parts)}) == 1
    with pytest.raises(FrozenInstanceError):
        SAMPLE.key = "0002"
