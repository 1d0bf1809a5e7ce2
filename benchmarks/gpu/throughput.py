"""Samples per second that arrive on the GPU, from each kind of shards, compared with other loaders and a bare loop."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu import data
from benchmarks.gpu.bare_loop import bare_decode_rate
from benchmarks.gpu.data import Amount
from benchmarks.gpu.stream import Batch, Stream, Throughput, measure_in_turns, to_gpu
from benchmarks.peers.kinds import KINDS, Kind
from benchmarks.peers.loaders import field as field_reports
from benchmarks.peers.task import MakeBatches, Task
from benchmarks.result import Line
from penstock import Image, Loader
from penstock.core.cores import loader_cores
from penstock.data.device.device_stage import SENDER_THREADS
from penstock.data.fields import Field, GpuTransform

WARM_UP_CPU_S, WARM_UP_GPU_S, WARM_UP_PEERS_S = 3.0, 7.0, 2.0
"""Seconds after the first batch that are not counted: worker processes start then. Where the GPU decodes too, it takes
longer, because the loader is finding out how to divide the images between GPU and cores."""
COUNTED_S, TURN_S = 2.5, 2.0
"""Seconds that are counted of a stream that is measured alone, and of each turn of streams that are compared."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALISE = GpuTransform("float16", mean=MEAN, std=STD, layout="channels_last")
FIELD_WORKERS, PEER_WORKERS = (8, 16, 32), {"webdataset": (16, 24), "SPDL": (8, 16)}
"""Numbers of workers that are tried with the field reports' loader and with each peer; the best counts."""
CORES_ONLY = "the same, decoded by the cores alone"
SHAPES = tuple(shape for side in range(333, 461, 4) for shape in ((side, 500), (500, side)))

Fields = Mapping[str, Field]


class ShardSets:
    """The shards of each kind, made when they are first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards: dict[str, list[str]] = {}
        self._parts: dict[str, list[data.Parts]] = {}

    def shards(self, name: str, kind: Kind, amount: Amount, convert: Callable[[data.Parts], data.Parts]) -> list[str]:
        """Return the paths of the shards of that name; `convert` is applied to each sample before it is written."""
        if name not in self._shards:
            if kind.name not in self._parts:
                self._parts[kind.name] = data.make_parts(kind, amount.distinct)
            samples = map(convert, self._parts[kind.name])
            self._shards[name] = data.write_shards(self._folder / name, list(samples), amount)
        return self._shards[name]

    def parts(self, kind: Kind) -> list[data.Parts]:
        """Return the different samples of a kind whose shards have been made."""
        return self._parts[kind.name]

    def sa1b(self) -> list[str]:
        return self.shards("sa1b", KINDS["sa1b"], Amount(48, 48, 16, 4), dict)

    def packed(self) -> list[str]:
        return self.shards("packed", KINDS["sa1b"], Amount(48, 48, 16, 16), data.packed)

    def imagenet(self) -> list[str]:
        return self.shards("imagenet", KINDS["imagenet"], Amount(512, 1024, 32, 2), dict)

    def shapes(self) -> list[str]:
        """Return shards of ImageNet-like images with as many shapes as a batch of real photos has."""
        kind = KINDS["imagenet"]
        images = tuple(replace(spec, sizes=SHAPES) for spec in kind.preset.images)
        many_shapes = replace(kind, name="many shapes", preset=replace(kind.preset, images=images))
        return self.shards("shapes", many_shapes, Amount(512, 1024, 32, 2), dict)

    def reid(self) -> list[str]:
        return self.shards("reid", KINDS["reid"], Amount(1024, 2048, 32, 2), dict)

    def arrays(self) -> list[str]:
        return data.write_shards(self._folder / "arrays", data.arrays(8), Amount(8, 64, 4, 48))


def loader_throughput(shards: list[str], fields: Fields, batch_size: int) -> Throughput:
    """Measure penstock.Loader alone."""
    with loader_stream(shards, fields, batch_size) as stream:
        return stream.count(COUNTED_S)


@contextmanager
def loader_stream(
    shards: list[str],
    fields: Fields,
    batch_size: int,
    use: Callable[[Batch], object] = len,
    warm_up_gpu_s: float = WARM_UP_GPU_S,
) -> Iterator[Stream]:
    """Open a stream of the batches of penstock.Loader; `warm_up_gpu_s` is its warm-up if the GPU decodes."""
    decode = {field.decode for field in fields.values() if isinstance(field, Image)}
    gpu_decodes = bool(decode - {"cpu"})
    # the loader would tune itself to this number of workers, but only after a while
    workers = loader_cores() - (SENDER_THREADS if decode & {"gpu", "hybrid"} else 0)
    with (
        closing(Loader(shards, fields, batch_size, shuffle=True, device="cuda", num_workers=workers)) as loader,
        closing(Stream(lambda: loader, use, warm_up_gpu_s if gpu_decodes else WARM_UP_CPU_S)) as stream,
    ):
        yield stream


def sa1b(shard_sets: ShardSets) -> Iterator[Line]:
    kind, shards = KINDS["sa1b"], shard_sets.sa1b()
    hybrid, cores, peers = _measure_with_peers(kind, shards, kind.image, 24, ["webdataset"])
    tasks = (Task(kind, shards, 24, workers, "own") for workers in FIELD_WORKERS)
    field = max((_measure_peer(kind, field_reports.prepare(task)) for task in tasks), key=lambda found: found.rate)
    what = "SA-1B-like shards as they are, decoded by GPU and cores (hybrid)"
    yield rate_line(what, hybrid, "field reports' loader", field, 5)
    yield rate_line(CORES_ONLY, cores, "field reports' loader", field, 5)
    for peer, found in peers.items():
        yield rate_line(what, hybrid, f"{peer}, our decoder", found, 1.4)
        yield rate_line(CORES_ONLY, cores, f"{peer}, our decoder", found, 1)
    fields = {**kind.fields, "image": replace(kind.image, decode="gpu")}
    packed = loader_throughput(shard_sets.packed(), fields, 64)
    yield _target_line("SA-1B-like shards, packed, in the page cache, JPEGs decoded on the GPU", packed, 4000)
    yield rate_line("the same", packed, "field reports' loader, not packed", field, 20)
    packed_cores = loader_throughput(shard_sets.packed(), kind.fields, 64)
    yield _bare_loop_line("SA-1B-like, packed", kind, packed_cores, map(data.packed, shard_sets.parts(kind)))


def decoding(shard_sets: ShardSets) -> Iterator[Line]:
    image = Image(".jpg", size=1024, quality="exact", decode="gpu")
    found = loader_throughput(shard_sets.sa1b(), {"image": image}, 32)
    yield _target_line("JPEGs of 1500×2250, decoded on the GPU to 1024", found, 2700)
    yield Line("the same: CPU time per image", f"{found.core_ms:.2f} ms", "", found.core_ms, 0.6, "at most")
    lowest = min(_psnrs(shard_sets.sa1b(), image))
    what = "the same: lowest PSNR to the images that the cores decode"
    yield Line(what, f"{lowest:.1f} dB", "", lowest, 35, "at least")
    hybrid = loader_throughput(shard_sets.sa1b(), {"image": replace(image, quality="fast", decode="hybrid")}, 32)
    cores = loader_throughput(shard_sets.sa1b(), {"image": Image(".jpg", size=1024)}, 32)
    yield rate_line("JPEGs of 1500×2250, decoded by GPU and cores (hybrid)", hybrid, "cores alone", cores, 1)


def _psnrs(shards: list[str], image: Image) -> list[float]:
    """Return the PSNR in dB of each image of a batch, between decoding on the GPU and on the CPU."""
    batches = []
    for decode in ("gpu", "cpu"):
        with closing(Loader(shards, {"image": replace(image, decode=decode)}, 32, device="cuda")) as loader:
            batches.append(next(iter(loader))["image"].float())
    squared_error = (batches[0] - batches[1]).square().mean(dim=(1, 2, 3))
    return (10 * torch.log10(255**2 / squared_error)).tolist()


def imagenet(shard_sets: ShardSets) -> Iterator[Line]:
    kind, shards = KINDS["imagenet"], shard_sets.imagenet()
    image = replace(kind.image, gpu_transform=NORMALISE, layout="HWC")
    hybrid, cores, peers = _measure_with_peers(kind, shards, image, 256, PEER_WORKERS)
    yield _bare_loop_line(kind.name, kind, cores, shard_sets.parts(kind))
    what = "ImageNet-like to 224, normalised on the GPU, decoded by GPU and cores (hybrid)"
    yield _target_line(what, hybrid, 15_000)
    for peer, found in peers.items():
        yield rate_line(what, hybrid, f"{peer}, our decoder", found, 2.5)
        yield rate_line(CORES_ONLY, cores, f"{peer}, our decoder", found, 1)


def shapes(shard_sets: ShardSets) -> Iterator[Line]:
    """Compare images of many shapes with images of five: a batch of real photos has dozens of shapes."""
    kind = KINDS["imagenet"]
    fields = {**kind.fields, "image": replace(kind.image, gpu_transform=NORMALISE, layout="HWC", decode="hybrid")}
    with (
        loader_stream(shard_sets.shapes(), fields, 256) as many_shapes,
        loader_stream(shard_sets.imagenet(), fields, 256) as five_shapes,
    ):
        many, five = measure_in_turns([many_shapes, five_shapes], TURN_S)
    what = f"ImageNet-like of {len(SHAPES)} shapes, decoded by GPU and cores (hybrid)"
    yield rate_line(what, many, "of five shapes", five, 0.9)


def reid(shard_sets: ShardSets) -> Iterator[Line]:
    kind = KINDS["reid"]
    found = loader_throughput(shard_sets.reid(), kind.fields, 256)
    yield _target_line("ReID-like, delivered to the GPU", found, 35_000)
    yield _bare_loop_line(kind.name, kind, found, shard_sets.parts(kind))


def _bare_loop_line(name: str, kind: Kind, found: Throughput, samples: Iterable[data.Parts]) -> Line:
    """Compare a loader that decodes on the cores alone with a bare decode loop on all cores."""
    rate = bare_decode_rate(list(samples), kind.fields)
    return Line(
        f"{name}: share of what the cores can decode",
        f"{found.rate:,.0f} samples/s",
        f"bare decode loop on all cores: {rate:,.0f}",
        found.rate / rate,
        0.9,
        "at least",
    )


def _measure_with_peers(
    kind: Kind, shards: list[str], image: Image, batch_size: int, peers: Iterable[str]
) -> tuple[Throughput, Throughput, dict[str, Throughput]]:
    """Measure in turns: ours decoded by GPU and cores, ours by the cores alone, and the installed peers by name.

    The peers use our decoder.
    """
    installed = [peer for peer in peers if importlib.util.find_spec(peer.lower()) is not None]
    prepared = {peer: _best_workers(peer, kind, shards, batch_size) for peer in installed}
    with ExitStack() as stack:
        variants = ({**kind.fields, "image": replace(image, decode=decode)} for decode in ("hybrid", "cpu"))
        streams = [stack.enter_context(loader_stream(shards, fields, batch_size)) for fields in variants]
        streams += [stack.enter_context(closing(_peer_stream(kind, each))) for each in prepared.values()]
        hybrid, cores, *others = measure_in_turns(streams, TURN_S)
        return hybrid, cores, dict(zip(installed, others, strict=True))


def _best_workers(peer: str, kind: Kind, shards: list[str], batch_size: int) -> MakeBatches:
    """Return the peer with the number of workers that is fastest."""
    module = importlib.import_module(f"benchmarks.peers.loaders.{peer.lower()}")
    prepare: Callable[[Task], MakeBatches] = module.prepare
    tasks = (Task(kind, shards, batch_size, workers, "ours") for workers in PEER_WORKERS[peer])
    return max(map(prepare, tasks), key=lambda prepared: _measure_peer(kind, prepared).rate)


def _measure_peer(kind: Kind, prepared: MakeBatches) -> Throughput:
    with closing(_peer_stream(kind, prepared)) as stream:
        return stream.count(COUNTED_S)


def _peer_stream(kind: Kind, prepared: MakeBatches) -> Stream:
    use = _normalise_on_gpu if kind.name.startswith("ImageNet") else to_gpu
    return Stream(prepared, use, WARM_UP_PEERS_S)


def _normalise_on_gpu(batch: Batch) -> torch.Tensor:
    """Copy the images to the GPU and normalise them, as `NORMALISE` does in our loader."""
    image = to_gpu(batch)["image"].to(torch.float16, memory_format=torch.channels_last)
    mean, std = (torch.tensor(numbers, device="cuda", dtype=torch.float16)[:, None, None] for numbers in (MEAN, STD))
    return (image / 255 - mean) / std


def _target_line(what: str, found: Throughput, target: float) -> Line:
    return Line(what, f"{found.rate:,.0f} samples/s", f"to reach: {target:,.0f}", found.rate / target, 1, "at least")


def rate_line(what: str, found: Throughput, against: str, other: Throughput, target: float) -> Line:
    figure = f"{found.rate:,.0f} samples/s"
    return Line(what, figure, f"{against}: {other.rate:,.0f}", found.rate / other.rate, target, "at least")
