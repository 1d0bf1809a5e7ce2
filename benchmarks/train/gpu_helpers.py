"""Each helper on a GPU beside the habit that it replaces, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any, Literal

import torch
from torch import nn

from benchmarks.result import Line, in_turns, median_ratio
from benchmarks.train.gpu_models import (
    STEPS,
    Batch,
    Step,
    convolutions,
    layers,
    loss_of,
    pictures,
    pictures_on_gpu,
    timed,
    trained,
    transformer,
)
from penstock.train import GradClip, Metrics, Prefetcher, compile, precision, to_device
from penstock.train.compiled import CompiledModel

ROUNDS = 5


def measure() -> Iterator[Line]:
    yield from _copies()
    yield from _clips()
    yield _row("Metrics", trained(_adding()), "item() at every step", trained(_fetching()), 1.0)
    in_half = trained(_precise("bf16"))
    yield _row("precision bf16, ViT-S", in_half, "fp32", trained(_precise("fp32")), 1.2)
    yield _row("compile, ViT-S in bf16", _compiled(), "as it is", in_half, 1.0)


def _copies() -> Iterator[Line]:
    ordinary, pinned = pictures(STEPS, pinned=False), pictures(STEPS, pinned=True)
    model = convolutions()

    def loop(batches: Iterable[Batch], move: Callable[[Batch], Batch] = lambda batch: batch) -> Callable[[], float]:
        def run() -> float:
            with torch.no_grad():
                return timed((move(batch) for batch in batches), lambda batch: loss_of(model, batch))

        return run

    blocking = loop(ordinary, lambda batch: {name: value.to("cuda") for name, value in batch.items()})
    direct = loop(pinned, lambda batch: to_device(batch, "cuda"))
    pinning = loop(ordinary, lambda batch: to_device(batch, "cuda", pin=True))
    ahead, pinned_ahead = loop(Prefetcher(ordinary, "cuda")), loop(Prefetcher(ordinary, "cuda", pin=True))
    yield _row("to_device, pinned memory", direct, "ordinary memory, blocking", blocking, 1.0)
    yield _row("to_device, pin=True", pinning, "ordinary memory, blocking", blocking, 1.0)
    yield _row("Prefetcher, pinned memory", loop(Prefetcher(pinned, "cuda")), "to_device, pinned memory", direct, 1.0)
    yield _row("Prefetcher, ordinary memory", ahead, "blocking", blocking, 1.0)
    yield _row("Prefetcher, pin=True", pinned_ahead, "Prefetcher, ordinary memory", ahead, 1.0)


def _clips() -> Iterator[Line]:
    clip, adaptive = GradClip(1.0, every=100), GradClip(1.0, adaptive=0.9, every=100)
    ours = trained(_stepping(lambda _model, optimizer: clip.step(optimizer)))
    changing = trained(_stepping(lambda _model, optimizer: adaptive.step(optimizer)))
    torchs = trained(_stepping(_torchs_norms))
    yield _row("GradClip", ours, "every norm fetched at every step", trained(_stepping(_norms_by_hand)), 1.0)
    yield _row("GradClip", ours, "torch's clip_grad_norm_", torchs, 0.95)
    yield _row("GradClip, adaptive", changing, "torch's clip_grad_norm_", torchs, 0.9)


def _norms_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    sum(each.grad.norm(2).item() ** 2 for each in model.parameters() if each.grad is not None)
    _torchs_norms(model, optimizer)


def _torchs_norms(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _stepping(finish: Callable[[nn.Module, torch.optim.Optimizer], None]) -> Step:
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=True)

    def step(batch: Batch) -> torch.Tensor:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        finish(model, optimizer)
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def _plain(model: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    def step(batch: Batch) -> torch.Tensor:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        return loss

    return step


def _adding() -> Step:
    step, metrics = _plain(layers()), Metrics()

    def add(batch: Batch) -> torch.Tensor:
        loss = step(batch)
        metrics.add(loss=loss)
        return loss

    return add


def _fetching() -> Step:
    step, total = _plain(layers()), 0.0

    def fetch(batch: Batch) -> torch.Tensor:
        nonlocal total
        loss = step(batch)
        total += loss.item()
        return loss

    return fetch


def _precise(kind: Literal["bf16", "fp32"], change: Callable[[nn.Module], Any] = lambda model: model) -> Step:
    plain, data = transformer(), pictures_on_gpu()
    model = change(plain)
    amp = precision(plain, kind, watch=10**9)
    optimizer = torch.optim.AdamW(plain.parameters(), 1e-5, fused=True)

    def step(_batch: Batch) -> torch.Tensor:
        with amp.autocast():
            loss = loss_of(model, data)
        amp.backward(loss)
        amp.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def _compiled() -> Callable[[], float]:
    made: list[CompiledModel] = []

    def compiling(model: nn.Module) -> CompiledModel:
        made.append(compile(model))
        return made[0]

    run = trained(_precise("bf16", compiling))
    run()
    print(f"compile: {made[0].graphs} graphs, {made[0].recompiled} recompilations, failure {made[0].failure}")
    return run


def _row(what: str, ours: Callable[[], float], habit: str, other: Callable[[], float], target: float) -> Line:
    mine, theirs = in_turns([ours, other], ROUNDS)
    figure, against = f"{median(mine) * 1e3:.3f} ms/step", f"{habit}: {median(theirs) * 1e3:.3f} ms/step"
    return Line(f"{what}: steps per second", figure, against, median_ratio(theirs, mine), target, "at least")
