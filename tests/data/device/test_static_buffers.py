"""Batches at the same memory addresses, through a whole loader on the CPU."""

import numpy as np
import pytest

from penstock.data.fields import Array
from penstock.shards.codecs.arrays import encode_npy
from penstock.testing import tar_bytes


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """Ten arrays, each filled with its number."""
    path = tmp_path_factory.mktemp("arrays") / "a.tar"
    path.write_bytes(tar_bytes([(f"{n}.npy", encode_npy(np.full((4, 5), n, np.float32))) for n in range(10)]))
    return path


def test_static_batches_have_the_same_address_in_every_epoch(shard, make_loader):
    loader = make_loader(shard, {"x": Array(".npy")}, 4, static_buffers=True)
    addresses, seen = set(), []
    for _ in range(2):
        for batch in loader:
            addresses.add(batch["x"].data_ptr())
            seen += batch["x"][:, 0, 0].tolist()
            assert batch["x"][:, 0, 0].tolist() == [float(key) for key in batch["__key__"]]
    assert len(addresses) == 1
    assert seen == [float(n) for n in range(10)] * 2


def test_a_static_batch_is_overwritten_by_the_next_and_an_ordinary_one_is_not(shard, make_loader):
    for static in (True, False):
        first, second, _ = list(make_loader(shard, {"x": Array(".npy")}, 4, static_buffers=static))
        assert (first["x"].data_ptr() == second["x"].data_ptr()) == static
        assert (first["x"][1, 0, 0] == 1) == (not static)


def test_a_batch_that_outgrows_its_buffer_is_complete_and_a_warning_reports_its_new_address(shard, make_loader, caplog):
    loader = make_loader(shard, {"x": Array(".npy")}, None, batch_sampler=[[0, 1], [2, 3, 4], [5]], static_buffers=True)
    seen = [batch["x"][:, 0, 0].tolist() for batch in loader]
    assert seen == [[0, 1], [2, 3, 4], [5]]
    assert "its address changes" in caplog.text
