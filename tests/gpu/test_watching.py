"""`make test-gpu`: trainings watched on a real GPU, without synchronisation, with times on the GPU's clock."""

import textwrap
import time

import numpy as np
import pytest
import torch

import penstock
from penstock.recording.reader import load
from penstock.shards.codecs.arrays import encode_npy
from penstock.testing import tar_bytes
from penstock.watcher.script.runner import Script, run_script

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # the check for synchronisations is a prototype
]

SECONDS = 1.6
"""Duration of the watched run, because the machine is sampled once a second."""
TRAINING = """
    import time
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.Linear(4096, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(1024, 512)), 8, pin_memory=True)
    held = torch.zeros(8, 512, device="cuda")
    graph = None
"""
STEPS = """
    torch.cuda.set_sync_debug_mode("error")
    for (x,) in loader:
        loss = model(x.to("cuda", non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.012)  # duration of a step
"""
REPLAYED = """
    model(held)  # libraries are loaded
    for (x,) in loader:
        held.copy_(x, non_blocking=True)
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = model(held).square().mean()
        graph.replay()
        time.sleep(0.012)
    torch.cuda.synchronize()
    assert torch.isfinite(loss)
"""


def watched(text, folder):
    script = folder / "train.py"
    script.write_text(textwrap.dedent(TRAINING) + textwrap.dedent(text))
    outcome = run_script(Script((str(script),), False), folder / "run.jsonl")
    assert outcome.code == 0
    return load(outcome.recordings[0])


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    return watched(STEPS, tmp_path_factory.mktemp("steps"))


def test_a_watched_script_never_synchronises_and_its_phases_are_timed_on_the_gpu(stepped):
    assert len(stepped.steps) == 128
    timed = [step.device_phases for step in stepped.steps if step.device_phases]
    assert timed
    for phase in ("h2d", "forward", "backward", "optimizer"):
        assert any(0 < phases.get(phase, 0) < 1 for phases in timed), phase


def test_the_utilisation_of_the_gpu_is_recorded(stepped):
    loads = [gpu for line in stepped.system for gpu in line.gpus]
    assert loads
    assert all(0 <= gpu.utilisation <= 1 for gpu in loads)
    assert max(gpu.memory_used_bytes for gpu in loads) > 1 << 20


def test_a_script_that_captures_a_cuda_graph_can_be_watched(tmp_path):
    assert len(watched(REPLAYED, tmp_path).steps) == 128


def test_a_watched_loader_never_synchronises_and_the_stalls_of_the_gpu_are_recorded(tmp_path):
    members = [(f"{n:04d}.npy", encode_npy(np.full((64, 512), n, np.float32))) for n in range(64)]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    loader = penstock.Loader(tmp_path / "a.tar", {"x": penstock.Array(".npy")}, 8, device="cuda", num_workers=1)
    for _ in loader:  # memory is pinned, kernels are loaded
        pass
    torch.cuda.set_sync_debug_mode("error")
    end = time.monotonic() + SECONDS
    try:
        with penstock.watch(loader, record=tmp_path / "run.jsonl") as batches:
            while time.monotonic() < end:
                for batch in batches:
                    with batches.phase("forward"):
                        batch["x"].mul_(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    loader.close()
    recording = load(tmp_path / "run.jsonl")
    copying_s, exposed_s, stalled_s = recording.hops[-1].gpu_times
    assert 0 < copying_s < SECONDS
    assert 0 <= exposed_s < SECONDS
    assert 0 < stalled_s < 2 * SECONDS
