"""The loader with a cache in front of a store gives what it gives without one, and later epochs ask for nothing."""

import os
import subprocess

import pytest
from tests.support import loader_helpers as loading

import penstock
from penstock.errors import SettingError

SAMPLES = 40
FIELDS = {"image": penstock.Image(".jpg", size=32)}


def settle(loader):
    """All that is wanted has been copied."""
    loading.settle(loader._source.supply._files._copies.tier)


def epoch(loader):
    batches = list(loader)
    return [(batch["__key__"], batch["image"].tolist()) for batch in batches]


@pytest.mark.parametrize("settings", [{}, {"shuffle": True}, {"sampler": list(range(SAMPLES))}], ids=str)
def test_the_second_epoch_asks_the_store_for_nothing(make_loader, local, remote, proxy, tmp_path, settings):
    loader = make_loader(remote, FIELDS, cache=str(tmp_path / "fast"), **settings)
    plain = make_loader([str(path) for path in local], FIELDS, **settings)
    assert epoch(loader) == epoch(plain)
    settle(loader)
    asked = proxy.counts.requests
    assert epoch(loader) == epoch(plain)
    assert proxy.counts.requests == asked
    assert len(list((tmp_path / "fast").glob("entry-*"))) == 4


def test_what_does_not_fit_is_read_from_the_store(make_loader, local, remote, proxy, tmp_path):
    size = sum(path.stat().st_size for path in local[:2])
    loader = make_loader(remote, FIELDS, cache=penstock.CacheOptions(str(tmp_path / "fast"), size))
    for _ in range(2):
        assert sum(len(keys) for keys, _ in epoch(loader)) == SAMPLES
        settle(loader)
    names = {request.path.rpartition("/")[2] for request in proxy.requests[-2:]}
    assert names <= {path.name for path in local[2:]}
    assert sum(path.stat().st_size for path in (tmp_path / "fast").glob("entry-*")) == size


@pytest.mark.parametrize("trouble", ["full", "read-only", "a file"])
def test_a_cache_that_cannot_be_costs_nothing_but_itself(make_loader, remote, mount_tmpfs, tmp_path, trouble):
    if trouble == "a file":
        folder = tmp_path / "file"
        folder.write_text("")
    else:
        folder = mount_tmpfs("small", "size=16k" if trouble == "full" else "size=1m")
    if trouble == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    loader = make_loader(remote, FIELDS, cache=penstock.CacheOptions(str(folder), 1 << 30))
    for _ in range(2):
        assert sum(len(keys) for keys, _ in epoch(loader)) == SAMPLES


def test_closing_a_loader_in_mid_epoch_leaves_no_half_copies(make_loader, remote, tmp_path):
    loader = make_loader(remote, FIELDS, batch_size=2, cache=str(tmp_path / "fast"))
    next(iter(loader))
    loader.close()
    left = {name.partition("-")[0] for name in os.listdir(tmp_path / "fast")}
    assert left <= {"entry", "directory.lock"}


def test_a_cache_of_a_dataset_is_refused(tmp_path):
    with pytest.raises(SettingError, match="cache is for shards"):
        penstock.Loader([1, 2, 3], batch_size=2, cache=str(tmp_path))


def test_ranks_of_a_node_share_the_copies(make_loader, remote, proxy, tmp_path):
    place = {"cache": str(tmp_path / "fast"), "world_size": 2, "shuffle": True, "batch_size": 4}
    ranks = [make_loader(remote, FIELDS, rank=rank, **place) for rank in (0, 1)]
    for _ in range(2):
        keys = {key for loader in ranks for batch_keys, _ in epoch(loader) for key in batch_keys}
        assert len(keys) == SAMPLES
        for loader in ranks:
            settle(loader)
    tiers = [loader._source.supply._files._copies.tier for loader in ranks]
    assert sum(tier.stats().staged for tier in tiers) == 4
    asked = proxy.counts.requests
    for loader in ranks:
        epoch(loader)
    assert proxy.counts.requests == asked
