"""A ViT-B in bf16 on batches from the loader, beside the same step on a batch that is there already."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.supplies import MEAN, STD, Material
from benchmarks.result import Line
from penstock import Image, Loader
from penstock.flow.fields import Finish

BATCH = 128
WARM_UP = 15
STEPS = 60
FINISH = Finish("bfloat16", mean=MEAN, std=STD, size=224, crop=(0.35, 1.0), flip=0.5, jitter=(0.2, 0.2, 0.2, 0.05))


def measure(material: Material) -> Iterator[Line]:
    step = _step()
    by_cores = Image(".jpg", size=256, fit="crop", layout="HWC", finish=FINISH)
    yield from _beside_cached("ImageNet-like, decoded by the cores", material.imagenet(), by_cores, step, 1.03)
    by_card = replace(by_cores, quality="exact", decode="gpu")
    yield from _beside_cached("ImageNet-like, decoded by the card", material.imagenet(), by_card, step, 1.08)


def _beside_cached(
    what: str, shards: list[str], image: Image, step: Callable[[torch.Tensor], None], target: float
) -> Iterator[Line]:
    loader = Loader(shards, {"image": image}, BATCH, shuffle=True, device="cuda")
    batches = (batch["image"] for batch in loader)
    for pixels in islice(batches, WARM_UP):
        step(pixels)
    cached = [_timed([pixels] * STEPS, step)]
    before = loader.card_times
    fed = _timed(islice(batches, STEPS), step)
    after = loader.card_times
    cached.append(_timed([pixels] * STEPS, step))
    loader.close()
    assert before is not None
    assert after is not None
    alone = sum(cached) / 2
    figure, against = f"{fed / STEPS * 1e3:.1f} ms/step", f"on a cached batch: {alone / STEPS * 1e3:.1f} ms/step"
    yield Line(f"ViT-B, {what}: step", figure, against, fed / alone, target, "at most")
    stalled = after.stalled_s - before.stalled_s
    yield Line(
        f"ViT-B, {what}: card stalled", f"{stalled / STEPS * 1e3:.2f} ms/step", "", stalled / fed, 0.02, "at most"
    )


def _timed(batches: Iterable[torch.Tensor], step: Callable[[torch.Tensor], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for pixels in batches:
        step(pixels)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _step() -> Callable[[torch.Tensor], None]:
    from torchvision.models import vit_b_16

    model: Any = vit_b_16().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    labels = torch.randint(1000, (BATCH,), device="cuda")

    def step(pixels: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
