"""`make test-gpu`: images transformed on a real GPU, batches at the same addresses, times on the GPU's clock."""

import numpy as np
import pytest
import simplejpeg
import torch
from tests.support.loader_helpers import loader_settings

import penstock
from penstock.data.device.transform.draw import draw_transforms
from penstock.data.device.transform.kernel_transform import KernelTransform, choose_transform
from penstock.data.device.transform.torch_transform import TorchTransform
from penstock.data.fields import GpuTransform, Image, Label
from penstock.testing import make_image, tar_bytes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

TRANSFORMS = {
    "normalised": GpuTransform("float16", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)),
    "resized": GpuTransform(size=(48, 40)),
    "cut out": GpuTransform(size=32, crop="random", flip=0.5, layout="channels_last"),
    "everything": GpuTransform("bfloat16", size=40, flip=0.5, jitter=(0.3, 0.3, 0.3, 0.1)),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """96 images in three shards, each with its number."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(3):
        members = []
        for number in range(32 * shard, 32 * shard + 32):
            members.append((f"{number:04d}.jpg", simplejpeg.encode_jpeg(make_image(72, 96, number), quality=90)))
            members.append((f"{number:04d}.cls", str(number).encode()))
        (folder / f"{shard}.tar").write_bytes(tar_bytes(members))
    return sorted(folder.iterdir())


def loader_of(shards, transform, **settings):
    fields = {"image": Image(".jpg", size=64, fit="crop", gpu_transform=transform), "label": Label(".cls")}
    return penstock.Loader(
        shards,
        fields,
        8,
        **loader_settings(**{"device": "cuda", "shuffle": True, "seed": 5, "num_workers": 2, **settings}),
    )


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_gpu_gives_the_result_of_the_cpu_and_no_thread_synchronises(shards, name):
    loader = loader_of(shards, TRANSFORMS[name])
    for _ in loader:  # kernels are loaded, memory is pinned
        pass
    found = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in loader:
            found.append(batch["image"].clone())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    reference = loader_of(shards, TRANSFORMS[name], device="cpu")
    reference.set_epoch(1)
    for image, batch in zip(found, reference, strict=True):
        expected = batch["image"]
        assert image.dtype == expected.dtype
        assert image.stride() == expected.stride()
        tolerance = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}[expected.dtype]
        assert torch.allclose(image.cpu().float(), expected.float(), atol=tolerance)
    loader.close()
    reference.close()


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore")  # warnings of the profiler
def test_the_kernel_takes_one_or_two_launches_and_gives_the_result_of_torch(name):
    pytest.importorskip("triton", reason="Triton is not installed")
    transform, pixels = TRANSFORMS[name], torch.randint(0, 256, (16, 64, 64, 3), dtype=torch.uint8, device="cuda")
    planes, drawn = pixels.permute(0, 3, 1, 2), draw_transforms(transform, (64, 64), 0, 0, np.arange(16))
    chosen = choose_transform(transform, planes, drawn)
    assert isinstance(chosen, KernelTransform)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        found = chosen(planes, drawn)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert len([name for name in names if "transform_kernel" in name]) == (2 if any(transform.jitter) else 1), names
    expected = TorchTransform(transform, torch.device("cpu"))(planes.cpu(), drawn)
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[transform.dtype]
    assert torch.allclose(found.cpu().float(), expected.float(), atol=tolerance)
    assert torch.equal(chosen(planes, drawn), found)  # bit by bit the same each time


def test_a_cuda_graph_reads_every_batch_at_the_same_address(shards):
    loader = loader_of(shards, TRANSFORMS["everything"], static_buffers=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    first = next(iter(loader))
    with torch.cuda.stream(side):
        first["image"].float().mean(dim=(1, 2, 3))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        means = first["image"].float().mean(dim=(1, 2, 3))
    address = first["image"].data_ptr()
    loader.set_epoch(3)
    seen = []
    for batch in loader:
        assert batch["image"].data_ptr() == address
        graph.replay()
        seen.append((batch["__key__"], means.clone()))
    reference = loader_of(shards, TRANSFORMS["everything"], device="cpu")
    reference.set_epoch(3)
    for (keys, found), batch in zip(seen, reference, strict=True):
        assert keys == batch["__key__"]
        assert torch.allclose(found.cpu(), batch["image"].float().mean(dim=(1, 2, 3)), atol=5e-3)
    loader.close()
    reference.close()


def test_gpu_times_are_recorded(shards):
    loader = loader_of(shards, TRANSFORMS["resized"])
    assert loader.gpu_times is None
    for batch in loader:
        batch["image"].sum()
    torch.cuda.synchronize()
    times = loader.gpu_times
    assert 0 < times.copying_s < 10
    assert 0 <= times.exposed_s < 10
    assert 0 <= times.stalled_s < 60
    loader.close()


def test_gpu_memory_does_not_grow_from_epoch_to_epoch(shards):
    loader = loader_of(shards, TRANSFORMS["everything"])
    peaks = []
    for _ in range(4):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        for batch in loader:
            batch["image"].sum()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    assert max(peaks[1:]) <= min(peaks[1:]) + 4 * batch["image"].nbytes
    loader.close()


@pytest.mark.filterwarnings("ignore")  # warnings of the compiler
def test_compiled_steps_are_not_recompiled_for_static_batches(shards):
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(lambda image: (image.float() * 2).mean(), backend=count)
    loader = loader_of(shards, TRANSFORMS["normalised"], static_buffers=True)
    losses = [float(step(batch["image"])) for batch in loader]
    assert len(graphs) == 1
    assert np.isfinite(losses).all()
    loader.close()
