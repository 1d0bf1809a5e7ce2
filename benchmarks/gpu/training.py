"""A ViT-B in bf16 on batches of each kind of shards, beside the same step on a batch that is there already."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.gpu.stream import gpu_times
from benchmarks.gpu.throughput import MEAN, STD, Material
from benchmarks.peers.kinds import KINDS
from benchmarks.result import Line, in_turns, median_ratio
from penstock import Image, Loader
from penstock.data.fields import Field, GpuTransform

SHORT_PASS = 35
ROUNDS, PHASE_S = 3, 1.2
MOST_STEPS, LEAST_STEPS = 60, 8
NORMALISE = GpuTransform("bfloat16", mean=MEAN, std=STD, flip=0.5)
CROPPED = replace(NORMALISE, size=224, crop=(0.35, 1.0), jitter=(0.2, 0.2, 0.2, 0.05))
STALLED = 0.02
SLOWER = {"cpu": ("cores", 1.03), "gpu": ("card", 1.08), "auto": ("side that auto chose", 1.03)}
"""Who decodes, and how much longer a step may take than on a batch that is there."""

Step = Callable[[Tensor], None]


@dataclass(frozen=True)
class Course:
    """What is trained on."""

    name: str
    shards: list[str]
    image: Image
    others: Mapping[str, Field]
    sides: tuple[int, int]
    """Of a picture, as the model gets it."""
    batch_size: int
    decodes: tuple[str, ...] = ("cpu", "gpu", "auto")
    batches: int | None = None
    """Of a pass, if not all there are."""
    warm_up: int = 15
    """Steps before any is counted."""


def courses(material: Material) -> Iterator[Course]:
    """Of each kind one; supply exceeds demand on all of them. And once more in passes as short as a field report's."""
    imagenet = Image(".jpg", size=256, fit="crop", layout="HWC", gpu_transform=CROPPED)
    yield Course("ImageNet-like", material.imagenet(), imagenet, {}, (224, 224), 128)
    reid = _as_they_are("reid", material.reid(), (256, 128), 128)
    yield reid
    name = f"{reid.name}, passes of {SHORT_PASS} batches"
    yield replace(reid, name=name, decodes=("cpu",), batches=SHORT_PASS, warm_up=2 * SHORT_PASS)
    yield _as_they_are("sa1b", material.sa1b(), (1024, 1024), 16)


def _as_they_are(kind: str, shards: list[str], sides: tuple[int, int], batch_size: int) -> Course:
    found = KINDS[kind]
    others = {name: field for name, field in found.fields.items() if name != "image"}
    return Course(
        found.name, shards, replace(found.image, layout="HWC", gpu_transform=NORMALISE), others, sides, batch_size
    )


def measure(material: Material) -> Iterator[Line]:
    for course in courses(material):
        step = _step(*course.sides, course.batch_size)
        exact = replace(course, image=replace(course.image, quality="exact"))
        for decode in course.decodes:
            yield from _beside_cached(course if decode == "cpu" else exact, decode, step)
        del step
        torch.cuda.empty_cache()


def _beside_cached(course: Course, decode: str, step: Step) -> Iterator[Line]:
    image = replace(course.image, decode=decode)  # type: ignore[arg-type]
    fields = {**course.others, "image": image}
    samples = None if course.batches is None else course.batches * course.batch_size
    loader = Loader(
        course.shards, fields, course.batch_size, shuffle=True, drop_last=True, device="cuda", max_samples=samples
    )
    batches = (batch["image"] for batch in chain.from_iterable(repeat(loader)))
    for pixels in islice(batches, course.warm_up):
        step(pixels)
    steps = min(MOST_STEPS, max(LEAST_STEPS, round(PHASE_S / _seconds([pixels] * 3, step) * 3)))

    def fed() -> tuple[float, float]:
        before = gpu_times(loader).stalled_s
        seconds = _seconds(islice(batches, steps), step)
        return seconds, gpu_times(loader).stalled_s - before

    gc.collect()  # what the rows before have left would be collected in a step
    with_loader, cached = in_turns([fed, lambda: (_seconds([pixels] * steps, step), 0.0)], ROUNDS)
    loader.close()
    yield from _lines(f"ViT-B, {course.name}", decode, steps, with_loader, [seconds for seconds, _ in cached])


def _lines(
    what: str, decode: str, steps: int, fed: Sequence[tuple[float, float]], cached: Sequence[float]
) -> Iterator[Line]:
    """`fed` has the seconds of so many steps, and those of them in which the card had nothing to do."""
    who, slower = SLOWER[decode]
    what = f"{what}, decoded by the {who}"
    times = [seconds for seconds, _ in fed]
    ours, other = (median(each) / steps * 1e3 for each in (times, cached))
    figure, against = f"{ours:.1f} ms/step", f"on a cached batch: {other:.1f} ms/step"
    yield Line(f"{what}: step", figure, against, median_ratio(times, cached), slower, "at most")
    stall = median(stalled for _, stalled in fed)
    share = median(stalled / seconds for seconds, stalled in fed)
    yield Line(f"{what}: card stalled", f"{stall / steps * 1e3:.2f} ms/step", "", share, STALLED, "at most")


def _seconds(batches: Iterable[Tensor], step: Step) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for pixels in batches:
        step(pixels)
    torch.cuda.synchronize()
    return time.perf_counter() - start


class Vit(nn.Module):
    """A ViT-B for pictures of any shape: 12 layers of 768 numbers, patches of 16×16."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, stride=16)
        self.places = nn.Parameter(torch.zeros(height // 16 * (width // 16), 768))
        layer = nn.TransformerEncoderLayer(
            768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, 1000)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.patches(pixels).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(tokens).mean(1))  # type: ignore[no-any-return]


def _step(height: int, width: int, batch_size: int) -> Step:
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
