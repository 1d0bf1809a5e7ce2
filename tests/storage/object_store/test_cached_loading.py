"""A loader with a shard cache returns the same batches as without, and reads nothing from the store later."""

import os
import subprocess

import pytest
from tests.support import loader_helpers as loading

import penstock
from penstock.errors import SettingError

SAMPLES = 40
FIELDS = {"image": penstock.Image(".jpg", size=32)}


def wait_for_copies(loader):
    """Wait until every shard that was requested has been copied."""
    loading.wait_for_copies(loader._source.block_source._reader._copies.tier)


def epoch(loader):
    batches = list(loader)
    return [(batch["__key__"], batch["image"].tolist()) for batch in batches]


@pytest.mark.parametrize("settings", [{}, {"shuffle": True}, {"sampler": list(range(SAMPLES))}], ids=str)
def test_the_second_epoch_reads_nothing_from_the_store(make_loader, local, remote, proxy, tmp_path, settings):
    loader = make_loader(remote, FIELDS, cache=str(tmp_path / "fast"), **settings)
    plain = make_loader([str(path) for path in local], FIELDS, **settings)
    assert epoch(loader) == epoch(plain)
    wait_for_copies(loader)
    requests = proxy.counts.requests
    assert epoch(loader) == epoch(plain)
    assert proxy.counts.requests == requests
    assert len(list((tmp_path / "fast").glob("entry-*"))) == 4


def test_shards_that_do_not_fit_are_read_from_the_store(make_loader, local, remote, proxy, tmp_path):
    size = sum(path.stat().st_size for path in local[:2])
    loader = make_loader(remote, FIELDS, cache=penstock.CacheOptions(str(tmp_path / "fast"), size))
    for _ in range(2):
        assert sum(len(keys) for keys, _ in epoch(loader)) == SAMPLES
        wait_for_copies(loader)
    names = {request.path.rpartition("/")[2] for request in proxy.requests[-2:]}
    assert names <= {path.name for path in local[2:]}
    assert sum(path.stat().st_size for path in (tmp_path / "fast").glob("entry-*")) == size


@pytest.mark.parametrize("problem", ["full", "read-only", "a file"])
def test_an_unusable_cache_folder_does_not_stop_the_loader(make_loader, remote, mount_tmpfs, tmp_path, problem):
    if problem == "a file":
        folder = tmp_path / "file"
        folder.write_text("")
    else:
        folder = mount_tmpfs("small", "size=16k" if problem == "full" else "size=1m")
    if problem == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    loader = make_loader(remote, FIELDS, cache=penstock.CacheOptions(str(folder), 1 << 30))
    for _ in range(2):
        assert sum(len(keys) for keys, _ in epoch(loader)) == SAMPLES


def test_closing_a_loader_during_an_epoch_leaves_no_partial_copies(make_loader, remote, tmp_path):
    loader = make_loader(remote, FIELDS, batch_size=2, cache=str(tmp_path / "fast"))
    next(iter(loader))
    loader.close()
    left = {name.partition("-")[0] for name in os.listdir(tmp_path / "fast")}
    assert left <= {"entry", "directory.lock"}


def test_a_cache_for_a_dataset_is_refused(tmp_path):
    with pytest.raises(SettingError, match="cache is for shards"):
        penstock.Loader([1, 2, 3], batch_size=2, cache=str(tmp_path))


def test_ranks_of_a_node_share_the_copies(make_loader, remote, proxy, tmp_path):
    settings = {"cache": str(tmp_path / "fast"), "world_size": 2, "shuffle": True, "batch_size": 4}
    ranks = [make_loader(remote, FIELDS, rank=rank, **settings) for rank in (0, 1)]
    for _ in range(2):
        keys = {key for loader in ranks for batch_keys, _ in epoch(loader) for key in batch_keys}
        assert len(keys) == SAMPLES
        for loader in ranks:
            wait_for_copies(loader)
    tiers = [loader._source.block_source._reader._copies.tier for loader in ranks]
    assert sum(tier.stats().staged for tier in tiers) == 4
    requests = proxy.counts.requests
    for loader in ranks:
        epoch(loader)
    assert proxy.counts.requests == requests
