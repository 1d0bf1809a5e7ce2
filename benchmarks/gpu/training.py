"""Time the steps of a ViT-B in bf16 fed by the loader, compared with the same step on a batch that is on the GPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.gpu.stream import gpu_times
from benchmarks.gpu.throughput import MEAN, STD, ShardSets
from benchmarks.peers.kinds import KINDS
from benchmarks.result import Line, in_turns, median_ratio
from penstock import Image, Loader, RandomResizedCrop
from penstock.data.fields import Field, GpuTransform

SHORT_EPOCH = 35
"""Batches of an epoch as short as that of a field report."""
ROUNDS, TURN_S = 3, 1.2
MAX_STEPS, MIN_STEPS = 60, 8
"""Bounds of the number of steps in a turn."""
NORMALISE = GpuTransform("bfloat16", mean=MEAN, std=STD, flip=0.5)
JITTERED = replace(NORMALISE, jitter=(0.2, 0.2, 0.2, 0.05))
STALLED_SHARE = 0.02
"""Share of a step during which the GPU may have no work."""
STEP_RATIOS = {"cpu": ("cores", 1.03), "gpu": ("GPU", 1.08), "auto": ("side that auto chose", 1.03)}
"""Name of the side that decodes, and the largest accepted ratio of a step to one on a cached batch, by `decode`."""

Step = Callable[[Tensor], None]


@dataclass(frozen=True)
class TrainingData:
    """The shards of a training and the settings of its loader."""

    name: str
    shards: list[str]
    image: Image
    others: Mapping[str, Field]
    """The fields besides the image."""
    sides: tuple[int, int]
    """Height and width of an image, as the model gets it."""
    batch_size: int
    decodes: tuple[str, ...] = ("cpu", "gpu", "auto")
    batches: int | None = None
    """Batches of an epoch; None: all that the shards have."""
    warm_up: int = 15
    """Steps before the first one that is counted."""


class FedSteps(NamedTuple):
    """The time of the steps of one turn, fed by the loader."""

    seconds: float
    stalled_s: float
    """Seconds of these in which the GPU had no work."""


def trainings(shard_sets: ShardSets) -> Iterator[TrainingData]:
    """Yield one training for each kind of shards, and one with short epochs. The loader is fast enough for all."""
    crop = RandomResizedCrop(scale=(0.35, 1.0))
    imagenet = Image(".jpg", size=224, crop=crop, layout="HWC", gpu_transform=JITTERED)
    yield TrainingData("ImageNet-like", shard_sets.imagenet(), imagenet, {}, (224, 224), 128)
    reid = _with_fields_of("reid", shard_sets.reid(), (256, 128), 128)
    yield reid
    name = f"{reid.name}, epochs of {SHORT_EPOCH} batches"
    yield replace(reid, name=name, decodes=("cpu",), batches=SHORT_EPOCH, warm_up=2 * SHORT_EPOCH)
    yield _with_fields_of("sa1b", shard_sets.sa1b(), (1024, 1024), 16)


def _with_fields_of(kind_name: str, shards: list[str], sides: tuple[int, int], batch_size: int) -> TrainingData:
    """Return a training with all fields of this kind, whose images are only normalised and flipped."""
    kind = KINDS[kind_name]
    others = {name: field for name, field in kind.fields.items() if name != "image"}
    image = replace(kind.image, layout="HWC", gpu_transform=NORMALISE)
    return TrainingData(kind.name, shards, image, others, sides, batch_size)


def measure(shard_sets: ShardSets) -> Iterator[Line]:
    for training in trainings(shard_sets):
        step = _make_step(*training.sides, training.batch_size)
        exact = replace(training, image=replace(training.image, quality="exact"))
        for decode in training.decodes:
            yield from _compare_with_cached(training if decode == "cpu" else exact, decode, step)
        del step
        torch.cuda.empty_cache()


def _compare_with_cached(training: TrainingData, decode: str, step: Step) -> Iterator[Line]:
    image = replace(training.image, decode=decode)  # type: ignore[arg-type]
    fields = {**training.others, "image": image}
    samples = None if training.batches is None else training.batches * training.batch_size
    loader = Loader(
        training.shards, fields, training.batch_size, shuffle=True, drop_last=True, device="cuda", max_samples=samples
    )
    batches = (batch["image"] for batch in chain.from_iterable(repeat(loader)))
    for pixels in islice(batches, training.warm_up):
        step(pixels)
    steps = min(MAX_STEPS, max(MIN_STEPS, round(TURN_S / _seconds([pixels] * 3, step) * 3)))

    def fed_turn() -> FedSteps:
        stalled_before_s = gpu_times(loader).stalled_s
        seconds = _seconds(islice(batches, steps), step)
        return FedSteps(seconds, gpu_times(loader).stalled_s - stalled_before_s)

    gc.collect()  # else garbage of the benchmarks before would be collected during a step
    fed, cached = in_turns([fed_turn, lambda: FedSteps(_seconds([pixels] * steps, step), 0.0)], ROUNDS)
    loader.close()
    yield from _lines(f"ViT-B, {training.name}", decode, steps, fed, [turn.seconds for turn in cached])


def _lines(training: str, decode: str, steps: int, fed: Sequence[FedSteps], cached: Sequence[float]) -> Iterator[Line]:
    """Yield two lines: the time of a step, and the share of it in which the GPU had no work.

    `fed` and `cached` are turns of so many steps each.
    """
    decoder, ratio = STEP_RATIOS[decode]
    what = f"{training}, decoded by the {decoder}"
    seconds = [turn.seconds for turn in fed]
    fed_ms, cached_ms = (median(each) / steps * 1e3 for each in (seconds, cached))
    figure, against = f"{fed_ms:.1f} ms/step", f"on a cached batch: {cached_ms:.1f} ms/step"
    yield Line(f"{what}: step", figure, against, median_ratio(seconds, cached), ratio, "at most")
    stalled_ms = median(turn.stalled_s for turn in fed) / steps * 1e3
    share = median(turn.stalled_s / turn.seconds for turn in fed)
    yield Line(f"{what}: GPU stalled", f"{stalled_ms:.2f} ms/step", "", share, STALLED_SHARE, "at most")


def _seconds(batches: Iterable[Tensor], step: Step) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for pixels in batches:
        step(pixels)
    torch.cuda.synchronize()
    return time.perf_counter() - start


class Vit(nn.Module):
    """A ViT-B for images of one shape: 12 layers of width 768, patches of 16×16."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, stride=16)
        self.positions = nn.Parameter(torch.zeros(height // 16 * (width // 16), 768))
        layer = nn.TransformerEncoderLayer(
            768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, 1000)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.patches(pixels).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.layers(tokens).mean(1))  # type: ignore[no-any-return]


def _make_step(height: int, width: int, batch_size: int) -> Step:
    model = Vit(height, width).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    labels = torch.randint(1000, (batch_size,), device="cuda")

    def step(pixels: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
