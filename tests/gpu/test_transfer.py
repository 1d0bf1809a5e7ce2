"""`make test-gpu`: the transfer of batches to a real GPU; skipped, with the reason, where there is none."""

import gc
from io import BytesIO

import numpy as np
import pytest
import torch
from tests.support.loader_helpers import loader_settings

import penstock
from penstock.errors import SettingError
from penstock.testing import tar_bytes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

SHAPE = (64, 512)


def npy(array):
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def shards(tmp_path):
    """96 arrays, each filled with its own number."""
    paths = []
    for shard in range(3):
        members = [(f"{32 * shard + n:04d}.npy", npy(np.full(SHAPE, 32 * shard + n, np.float32))) for n in range(32)]
        paths.append(tmp_path / f"{shard}.tar")
        paths[-1].write_bytes(tar_bytes(members))
    return paths


def loader_of(shards, **settings):
    return penstock.Loader(
        shards, {"x": penstock.Array(".npy")}, 8, **loader_settings(**{"device": "cuda", "shuffle": True, **settings})
    )


def numbers(batch):
    return [int(key) for key in batch["__key__"]]


def test_batches_arrive_on_the_gpu_complete_and_in_order(shards):
    loader, reference = loader_of(shards), loader_of(shards, device="cpu")
    for batch, same in zip(loader, reference, strict=True):
        assert batch["x"].device.type == "cuda"
        assert batch["__key__"] == same["__key__"]
        assert torch.equal(batch["x"].cpu(), same["x"])
    loader.close()
    reference.close()


def test_batches_that_the_user_keeps_do_not_change(shards):
    loader = loader_of(shards)
    kept = list(loader)
    assert all(batch["x"][:, 0, 0].tolist() == numbers(batch) for batch in kept)
    loader.close()
    assert all(batch["x"][:, 5, 7].tolist() == numbers(batch) for batch in kept)


@pytest.mark.filterwarnings("ignore")  # the profiler's own
def test_copies_come_from_pinned_memory(shards):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        loader = loader_of(shards)
        for _ in loader:
            pass
        torch.cuda.synchronize()
        loader.close()
    copies = {event.name for event in profile.events() if "HtoD" in event.name}
    assert copies
    assert all("Pinned" in name for name in copies), copies


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_loader_adds_no_synchronisation(shards):
    loader = loader_of(shards)
    next(iter(loader))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in loader:
            batch["x"].mul_(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    loader.close()


def test_a_batch_is_complete_for_work_on_another_stream(shards):
    loader, stream = loader_of(shards), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sums = [(numbers(batch), batch["x"].mean(dim=(1, 2))) for batch in loader]
    stream.synchronize()
    assert all(mean.tolist() == expected for expected, mean in sums)
    loader.close()


def test_gpu_memory_is_that_of_a_few_batches(shards):
    loader = loader_of(shards)
    for _ in loader:
        pass
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    for _ in range(3):
        for batch in loader:
            batch["x"].sum()
    size = batch["x"].nbytes
    assert (
        torch.cuda.max_memory_allocated() - base <= 4 * size
    )  # the current batch, the next one, and those that streams still use
    loader.close()


def test_an_epoch_that_is_left_early_leaves_no_pinned_memory(shards):
    loader = loader_of(shards)
    for _ in loader:
        break
    del _
    gc.collect()
    loader.close()
    loader = loader_of(shards)
    assert sum(len(batch["__key__"]) for batch in loader) == 96
    loader.close()


def test_batches_of_a_map_style_dataset_arrive_on_the_gpu():
    data = torch.utils.data.TensorDataset(torch.arange(64).float()[:, None].repeat(1, 1000))
    loader = penstock.Loader(data, batch_size=8, device="cuda")
    found = torch.cat([batch[0][:, 0].cpu() for batch in loader])
    assert found.tolist() == list(range(64))
    loader.close()


def test_the_index_of_a_missing_device_is_refused_before_the_first_batch(shards):
    loader = loader_of(shards, device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(SettingError, match="there is no cuda"):
        next(iter(loader))
