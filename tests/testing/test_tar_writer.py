from __future__ import annotations

import io
import tarfile

from penstock.testing import tar_bytes


def test_members_come_back_as_given_even_twice_the_same_name():
    members = [("a.jpg", b"one"), ("a.jpg", b"two"), ("empty.npz", b""), ("x" * 300 + ".jpg", b"long")]
    with tarfile.open(fileobj=io.BytesIO(tar_bytes(members))) as tar:
        assert [(member.name, tar.extractfile(member).read()) for member in tar] == members


def test_no_members_make_an_empty_but_sound_tar():
    data = tar_bytes([])
    assert data == bytes(len(data))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == []
