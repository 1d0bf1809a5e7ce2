"""Time that each helper adds to a training step on the CPU, some of them compared with code written by hand.

The cost of waiting for a GPU can only be measured on one: `python -m benchmarks.train.gpu` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.document import Finding
from benchmarks.result import Line, in_turns, median_ratio, rate
from penstock.train import (
    EvaluationBudget,
    Every,
    GradClip,
    Metrics,
    Prefetcher,
    Throttle,
    accumulate,
    compile,
    precision,
    scale_lr,
    to_device,
)

ROUNDS = 5
TURN_S = 0.2
"""Seconds for which a function is called repeatedly, to take its mean time."""
MAX_US = 100.0
"""Microseconds per step that a helper may take: 1% of a step of 10 ms."""
BATCHES = 200
"""Batches of the loader that the helpers around a loader are timed with."""


def measure() -> Iterator[Finding]:
    torch.set_num_threads(1)
    yield from _clip_lines()
    batch = {"image": torch.zeros(3, 8, 8), "deep": [torch.zeros(2), ("key", torch.zeros(1))]}
    metrics, values = Metrics(), {"loss": torch.tensor(1.0), "hits": torch.tensor(0.5)}
    loader = [batch] * BATCHES
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = scale_lr(optimizer, 32, 64, warm_up_steps=10**9)
    optimizer.step()
    our_compiled = compile(model, backend="eager")
    torch_compiled = torch.compile(model, backend="eager")
    row = torch.zeros(1, 4)
    costs: dict[str, Callable[[], float]] = {
        "Every": _seconds_per_call(Every(100)),
        "Throttle": _seconds_per_call(Throttle(1.0)),
        "EvaluationBudget.due": _seconds_per_call(EvaluationBudget(first=10**9).due),
        "Metrics.add, two tensors": _seconds_per_call(lambda: metrics.add(**values)),
        "to_device, nothing to move": _seconds_per_call(lambda: to_device(batch, "cpu")),
        "scale_lr": _seconds_per_call(schedule.step),
        "Prefetcher": _extra_s_per_batch(lambda: Prefetcher(loader, "cpu"), lambda: loader),
        "accumulate(4)": _extra_s_per_batch(lambda: _accumulated(loader, model), lambda: loader),
        "compile, a call": _extra_s(lambda: our_compiled(row), lambda: torch_compiled(row)),
        "precision, fp16": _extra_s_of_precision(),
    }
    for name, cost_s in zip(costs, in_turns(list(costs.values()), ROUNDS), strict=True):
        cost_us = max(0.0, median(cost_s)) * 1e6
        against = f"1% of a step of 10 ms: {MAX_US:g} µs"
        yield Line(f"{name}: µs per step", f"{cost_us:.2f} µs", against, cost_us, MAX_US, "at most")


def _clip_lines() -> Iterator[Line]:
    """Compare GradClip with the report's code, which fetches every norm at every step, and with torch's clipping."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)) for _ in range(40)))
    model(torch.randn(8, 64)).square().sum().backward()
    parameters = list(model.parameters())
    clip = GradClip(1e9, every=100)
    fetched_s, torch_s, our_s = in_turns(
        [
            _seconds_per_call(lambda: _fetch_norms_and_clip(parameters)),
            _seconds_per_call(lambda: nn.utils.clip_grad_norm_(parameters, 1e9, foreach=True)),
            _seconds_per_call(lambda: clip(parameters)),
        ],
        ROUNDS,
    )
    what, figure = f"GradClip, {len(parameters)} parameters", f"{median(our_s) * 1e6:.0f} µs"
    yield Line(
        f"{what}: speed-up over fetching every norm",
        figure,
        f"norms fetched: {median(fetched_s) * 1e6:.0f} µs",
        median_ratio(fetched_s, our_s),
        1.5,
        "at least",
    )
    yield Line(
        f"{what}: time relative to torch's",
        figure,
        f"clip_grad_norm_: {median(torch_s) * 1e6:.0f} µs",
        median_ratio(our_s, torch_s),
        1.3,
        "at most",
    )


def _fetch_norms_and_clip(parameters: list[nn.Parameter]) -> float:
    total = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            total += parameter.grad.data.norm(2).item() ** 2
    nn.utils.clip_grad_norm_(parameters, 1e9, foreach=False)
    return total**0.5


def _accumulated(loader: list[Any], model: nn.Module) -> Iterator[Any]:
    for batch, micro in accumulate(loader, 4, model):
        with micro:
            pass
        yield batch


def _extra_s_of_precision() -> Callable[[], float]:
    """Compare `precision` with autocast and loss scaling written by hand, in a step with almost no computation."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    row = torch.zeros(1, 4)
    amp = precision(model, "fp16")
    scaler = torch.amp.GradScaler("cpu")

    def ours() -> None:
        with amp.autocast():
            loss = model(row).float().sum()
        amp.backward(loss)
        amp.step(optimizer)

    def by_hand() -> None:
        with torch.autocast("cpu", torch.float16):
            loss = model(row).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return _extra_s(ours, by_hand)


def _seconds_per_call(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that measures the seconds of one call."""
    return lambda: 1 / rate(work, TURN_S)


def _extra_s(ours: Callable[[], object], plain: Callable[[], object]) -> Callable[[], float]:
    """Return a function that measures the seconds per call beyond those of the plain function."""
    return lambda: 1 / rate(ours, TURN_S) - 1 / rate(plain, TURN_S)


def _extra_s_per_batch(ours: Callable[[], Iterable[Any]], plain: Callable[[], Iterable[Any]]) -> Callable[[], float]:
    """Return a function that measures the seconds per batch beyond those of the plain loader."""

    def iterate(make_loader: Callable[[], Iterable[Any]]) -> Callable[[], None]:
        def run() -> None:
            for _ in make_loader():
                pass

        return run

    extra_s = _extra_s(iterate(ours), iterate(plain))
    return lambda: extra_s() / BATCHES
