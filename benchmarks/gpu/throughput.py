"""What arrives on the card, of each kind of shards, beside the loaders that people use."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu import data
from benchmarks.gpu.bare_loop import bare_rate
from benchmarks.gpu.data import Amount
from benchmarks.gpu.stream import Batch, Stream, Supply, side_by_side, to_card
from benchmarks.peers.kinds import KINDS, Kind
from benchmarks.peers.loaders import field as field_reports
from benchmarks.peers.task import MakeBatches, Task
from benchmarks.result import Line
from penstock import Image, Loader
from penstock.core.cores import loader_cores
from penstock.data.device.device_stage import SENDER_THREADS
from penstock.data.fields import Field, GpuTransform

WARM_S, WARM_ON_CARD_S, WARM_PEERS_S = 3.0, 7.0, 2.0
"""From the first batch on: then worker processes start; where card and cores decode, what each gets is being found."""
COUNTED_S, A_TURN_S = 2.5, 2.0
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALISE = GpuTransform("float16", mean=MEAN, std=STD, layout="channels_last")
FIELD_WORKERS, PEER_WORKERS = (8, 16, 32), {"webdataset": (16, 24), "SPDL": (8, 16)}
BY_CORES = "the same, decoded by the cores alone"
SHAPES = tuple(shape for side in range(333, 461, 4) for shape in ((side, 500), (500, side)))

Fields = Mapping[str, Field]


class Material:
    """The shards of each kind, made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards: dict[str, list[str]] = {}
        self._parts: dict[str, list[data.Parts]] = {}

    def shards(self, name: str, kind: Kind, amount: Amount, change: Callable[[data.Parts], data.Parts]) -> list[str]:
        if name not in self._shards:
            if kind.name not in self._parts:
                self._parts[kind.name] = data.make_parts(kind, amount.distinct)
            samples = map(change, self._parts[kind.name])
            self._shards[name] = data.write(self._folder / name, list(samples), amount)
        return self._shards[name]

    def parts(self, kind: Kind) -> list[data.Parts]:
        """Of the different samples, once there are shards of them."""
        return self._parts[kind.name]

    def sa1b(self) -> list[str]:
        return self.shards("sa1b", KINDS["sa1b"], Amount(48, 48, 16, 4), dict)

    def packed(self) -> list[str]:
        return self.shards("packed", KINDS["sa1b"], Amount(48, 48, 16, 16), data.packed)

    def imagenet(self) -> list[str]:
        return self.shards("imagenet", KINDS["imagenet"], Amount(512, 1024, 32, 2), dict)

    def shapes(self) -> list[str]:
        """ImageNet-like pictures, as many shapes as there are in a batch of real ones."""
        kind = KINDS["imagenet"]
        images = tuple(replace(spec, sizes=SHAPES) for spec in kind.preset.images)
        own = replace(kind, name="many shapes", preset=replace(kind.preset, images=images))
        return self.shards("shapes", own, Amount(512, 1024, 32, 2), dict)

    def reid(self) -> list[str]:
        return self.shards("reid", KINDS["reid"], Amount(1024, 2048, 32, 2), dict)

    def arrays(self) -> list[str]:
        return data.write(self._folder / "arrays", data.arrays(8), Amount(8, 64, 4, 48))


def ours(shards: list[str], fields: Fields, batch_size: int) -> Supply:
    with our_stream(shards, fields, batch_size) as stream:
        return stream.count(COUNTED_S)


@contextmanager
def our_stream(
    shards: list[str],
    fields: Fields,
    batch_size: int,
    use: Callable[[Batch], object] = len,
    warm_on_card_s: float = WARM_ON_CARD_S,
) -> Iterator[Stream]:
    decode = {field.decode for field in fields.values() if isinstance(field, Image)}
    on_card = bool(decode - {"cpu"})
    workers = loader_cores() - (
        SENDER_THREADS if decode & {"gpu", "hybrid"} else 0
    )  # where it gets to by itself, but later
    with (
        closing(Loader(shards, fields, batch_size, shuffle=True, device="cuda", num_workers=workers)) as loader,
        closing(Stream(lambda: loader, use, warm_on_card_s if on_card else WARM_S)) as stream,
    ):
        yield stream


def sa1b(material: Material) -> Iterator[Line]:
    kind, shards = KINDS["sa1b"], material.sa1b()
    both, cores, others = _beside_peers(kind, shards, kind.image, 24, ["webdataset"])
    tasks = (Task(kind, shards, 24, workers, "own") for workers in FIELD_WORKERS)
    field = max((_counted(kind, field_reports.prepare(task)) for task in tasks), key=lambda found: found.rate)
    what = "SA-1B-like shards as they are, by card and cores (hybrid)"
    yield beside(what, both, "field reports' loader", field, 5)
    yield beside(BY_CORES, cores, "field reports' loader", field, 5)
    for peer, found in others.items():
        yield beside(what, both, f"{peer}, our decoding", found, 1.4)
        yield beside(BY_CORES, cores, f"{peer}, our decoding", found, 1)
    small = ours(material.packed(), {**kind.fields, "image": replace(kind.image, decode="gpu")}, 64)
    yield _reach("SA-1B-like shards, packed, warm, JPEGs decoded on the card", small, 4000)
    yield beside("the same", small, "field reports' loader, not packed", field, 20)
    by_cores = ours(material.packed(), kind.fields, 64)
    yield _of_bare("SA-1B-like, packed", kind, by_cores, map(data.packed, material.parts(kind)))


def decoding(material: Material) -> Iterator[Line]:
    image = Image(".jpg", size=1024, quality="exact", decode="gpu")
    found = ours(material.sa1b(), {"image": image}, 32)
    yield _reach("JPEGs of 1500×2250, decoded on the card to 1024", found, 2700)
    yield Line("the same: CPU per picture", f"{found.core_ms:.2f} ms", "", found.core_ms, 0.6, "at most")
    lowest = min(_psnrs(material.sa1b(), image))
    yield Line("the same: PSNR to the cores' pictures, the lowest", f"{lowest:.1f} dB", "", lowest, 35, "at least")
    both = ours(material.sa1b(), {"image": replace(image, quality="fast", decode="hybrid")}, 32)
    cores = ours(material.sa1b(), {"image": Image(".jpg", size=1024)}, 32)
    yield beside("JPEGs of 1500×2250, by card and cores (hybrid)", both, "cores alone", cores, 1)


def _psnrs(shards: list[str], image: Image) -> list[float]:
    """Of each picture of a batch, in dB: the card's beside the cores'."""
    batches = []
    for decode in ("gpu", "cpu"):
        with closing(Loader(shards, {"image": replace(image, decode=decode)}, 32, device="cuda")) as loader:
            batches.append(next(iter(loader))["image"].float())
    apart = (batches[0] - batches[1]).square().mean(dim=(1, 2, 3))
    return (10 * torch.log10(255**2 / apart)).tolist()


def imagenet(material: Material) -> Iterator[Line]:
    kind, shards = KINDS["imagenet"], material.imagenet()
    image = replace(kind.image, gpu_transform=NORMALISE, layout="HWC")
    both, cores, others = _beside_peers(kind, shards, image, 256, PEER_WORKERS)
    yield _of_bare(kind.name, kind, cores, material.parts(kind))
    what = "ImageNet-like to 224, normalised on the card, by card and cores (hybrid)"
    yield _reach(what, both, 15_000)
    for peer, found in others.items():
        yield beside(what, both, f"{peer}, our decoding", found, 2.5)
        yield beside(BY_CORES, cores, f"{peer}, our decoding", found, 1)


def shapes(material: Material) -> Iterator[Line]:
    """A batch of real photos has dozens of shapes, ours five."""
    kind = KINDS["imagenet"]
    fields = {**kind.fields, "image": replace(kind.image, gpu_transform=NORMALISE, layout="HWC", decode="hybrid")}
    with our_stream(material.shapes(), fields, 256) as many, our_stream(material.imagenet(), fields, 256) as few:
        found, other = side_by_side([many, few], A_TURN_S)
    what = f"ImageNet-like of {len(SHAPES)} shapes, by card and cores (hybrid)"
    yield beside(what, found, "of five shapes", other, 0.9)


def reid(material: Material) -> Iterator[Line]:
    kind = KINDS["reid"]
    found = ours(material.reid(), kind.fields, 256)
    yield _reach("ReID-like, on the card", found, 35_000)
    yield _of_bare(kind.name, kind, found, material.parts(kind))


def _of_bare(name: str, kind: Kind, found: Supply, samples: Iterable[data.Parts]) -> Line:
    """What arrives is decoded by the cores alone."""
    rate = bare_rate(list(samples), kind.fields)
    against = f"a bare loop on all cores: {rate:,.0f}"
    return Line(
        f"{name}: of what the cores can decode",
        f"{found.rate:,.0f} samples/s",
        against,
        found.rate / rate,
        0.9,
        "at least",
    )


def _beside_peers(
    kind: Kind, shards: list[str], image: Image, batch_size: int, peers: Iterable[str]
) -> tuple[Supply, Supply, dict[str, Supply]]:
    """By card and cores, by the cores alone, and each peer's that is installed, with our decoding."""
    there = [peer for peer in peers if importlib.util.find_spec(peer.lower()) is not None]
    prepared = {peer: _at_its_best(peer, kind, shards, batch_size) for peer in there}
    with ExitStack() as stack:
        fields = ({**kind.fields, "image": replace(image, decode=decode)} for decode in ("hybrid", "cpu"))
        streams = [stack.enter_context(our_stream(shards, each, batch_size)) for each in fields]
        streams += [stack.enter_context(closing(_theirs(kind, each))) for each in prepared.values()]
        both, cores, *others = side_by_side(streams, A_TURN_S)
        return both, cores, dict(zip(there, others, strict=True))


def _at_its_best(peer: str, kind: Kind, shards: list[str], batch_size: int) -> MakeBatches:
    """With as many workers as do best."""
    contestant = importlib.import_module(f"benchmarks.peers.loaders.{peer.lower()}")
    prepare: Callable[[Task], MakeBatches] = contestant.prepare
    tasks = (Task(kind, shards, batch_size, workers, "ours") for workers in PEER_WORKERS[peer])
    return max(map(prepare, tasks), key=lambda prepared: _counted(kind, prepared).rate)


def _counted(kind: Kind, prepared: MakeBatches) -> Supply:
    with closing(_theirs(kind, prepared)) as stream:
        return stream.count(COUNTED_S)


def _theirs(kind: Kind, prepared: MakeBatches) -> Stream:
    return Stream(prepared, _normalised if kind.name.startswith("ImageNet") else to_card, WARM_PEERS_S)


def _normalised(batch: Batch) -> torch.Tensor:
    """What ours is asked for too."""
    image = to_card(batch)["image"].to(torch.float16, memory_format=torch.channels_last)
    mean, std = (torch.tensor(numbers, device="cuda", dtype=torch.float16)[:, None, None] for numbers in (MEAN, STD))
    return (image / 255 - mean) / std


def _reach(what: str, found: Supply, target: float) -> Line:
    return Line(what, f"{found.rate:,.0f} samples/s", f"to reach: {target:,.0f}", found.rate / target, 1, "at least")


def beside(what: str, found: Supply, name: str, other: Supply, target: float) -> Line:
    against = f"{name}: {other.rate:,.0f}"
    return Line(what, f"{found.rate:,.0f} samples/s", against, found.rate / other.rate, target, "at least")
