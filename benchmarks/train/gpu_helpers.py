"""Time each helper on a GPU in turns with the usual code that it replaces."""

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
    image_batch_on_gpu,
    image_batches,
    loss_of,
    many_small_layers,
    time_steps,
    timed_training,
    transformer,
)
from penstock.train import GradClip, Metrics, Prefetcher, compile, precision, to_device
from penstock.train.compiled import CompiledModel

ROUNDS = 5


def measure() -> Iterator[Line]:
    yield from _copies()
    yield from _clips()
    with_metrics, with_item = timed_training(_step_with_metrics()), timed_training(_step_with_item())
    yield _line("Metrics", with_metrics, "item() at every step", with_item, 1.0)
    bf16 = timed_training(_step_in_precision("bf16"))
    yield _line("precision bf16, ViT-S", bf16, "fp32", timed_training(_step_in_precision("fp32")), 1.2)
    yield _line("compile, ViT-S in bf16", _compiled(), "not compiled", bf16, 1.0)


def _copies() -> Iterator[Line]:
    pageable, pinned = image_batches(STEPS, pinned=False), image_batches(STEPS, pinned=True)
    model = convolutions()

    def loop(batches: Iterable[Batch], move: Callable[[Batch], Batch] = lambda batch: batch) -> Callable[[], float]:
        def run() -> float:
            with torch.no_grad():
                return time_steps((move(batch) for batch in batches), lambda batch: loss_of(model, batch))

        return run

    blocking = loop(pageable, lambda batch: {name: value.to("cuda") for name, value in batch.items()})
    direct = loop(pinned, lambda batch: to_device(batch, "cuda"))
    pinning = loop(pageable, lambda batch: to_device(batch, "cuda", pin=True))
    prefetched = loop(Prefetcher(pageable, "cuda"))
    pinning_prefetched = loop(Prefetcher(pageable, "cuda", pin=True))
    yield _line("to_device, pinned memory", direct, "pageable memory, blocking", blocking, 1.0)
    yield _line("to_device, pin=True", pinning, "pageable memory, blocking", blocking, 1.0)
    yield _line("Prefetcher, pinned memory", loop(Prefetcher(pinned, "cuda")), "to_device, pinned memory", direct, 1.0)
    yield _line("Prefetcher, pageable memory", prefetched, "blocking", blocking, 1.0)
    yield _line("Prefetcher, pin=True", pinning_prefetched, "Prefetcher, pageable memory", prefetched, 1.0)


def _clips() -> Iterator[Line]:
    clip, adaptive = GradClip(1.0, every=100), GradClip(1.0, adaptive=0.9, every=100)
    fixed_clip = timed_training(_step_ending_in(lambda _model, optimizer: clip.step(optimizer)))
    adaptive_clip = timed_training(_step_ending_in(lambda _model, optimizer: adaptive.step(optimizer)))
    torch_clip = timed_training(_step_ending_in(_clip_with_torch))
    fetched_norms = timed_training(_step_ending_in(_fetch_norms))
    yield _line("GradClip", fixed_clip, "every norm fetched at every step", fetched_norms, 1.0)
    yield _line("GradClip", fixed_clip, "torch's clip_grad_norm_", torch_clip, 0.95)
    yield _line("GradClip, adaptive", adaptive_clip, "torch's clip_grad_norm_", torch_clip, 0.9)


def _fetch_norms(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    sum(each.grad.norm(2).item() ** 2 for each in model.parameters() if each.grad is not None)
    _clip_with_torch(model, optimizer)


def _clip_with_torch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _step_ending_in(finish: Callable[[nn.Module, torch.optim.Optimizer], None]) -> Step:
    """Return a training step that calls `finish` to clip the gradients and step the optimizer."""
    model = many_small_layers()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=True)

    def step(batch: Batch) -> torch.Tensor:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        finish(model, optimizer)
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def _forward_backward(model: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    def step(batch: Batch) -> torch.Tensor:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        return loss

    return step


def _step_with_metrics() -> Step:
    step, metrics = _forward_backward(many_small_layers()), Metrics()

    def add(batch: Batch) -> torch.Tensor:
        loss = step(batch)
        metrics.add(loss=loss)
        return loss

    return add


def _step_with_item() -> Step:
    step, total = _forward_backward(many_small_layers()), 0.0

    def fetch(batch: Batch) -> torch.Tensor:
        nonlocal total
        loss = step(batch)
        total += loss.item()
        return loss

    return fetch


def _step_in_precision(kind: Literal["bf16", "fp32"], wrap: Callable[[nn.Module], Any] = lambda model: model) -> Step:
    plain, data = transformer(), image_batch_on_gpu()
    model = wrap(plain)
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
    compiled: list[CompiledModel] = []

    def compile_model(model: nn.Module) -> CompiledModel:
        compiled.append(compile(model))
        return compiled[0]

    run = timed_training(_step_in_precision("bf16", compile_model))
    run()  # compiles
    report = compiled[0]
    print(f"compile: {report.graphs} graphs, {report.recompiled} recompilations, failure {report.failure}")
    return run


def _line(what: str, ours: Callable[[], float], replaced: str, other: Callable[[], float], target: float) -> Line:
    """Compare two functions that return seconds per step; `replaced` describes the second one."""
    our_s, other_s = in_turns([ours, other], ROUNDS)
    figure, against = f"{median(our_s) * 1e3:.3f} ms/step", f"{replaced}: {median(other_s) * 1e3:.3f} ms/step"
    return Line(f"{what}: steps per second", figure, against, median_ratio(other_s, our_s), target, "at least")
