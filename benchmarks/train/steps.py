"""What each helper costs a training step on the CPU, and against what one writes by hand.

What waiting for a device costs can be seen on a device only: that part is `python -m benchmarks.train.gpu`.
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
MOST_US = 100.0
"""That a helper may take: 1% of a step of 10 ms."""
BATCHES = 200


def measure() -> Iterator[Finding]:
    torch.set_num_threads(1)
    yield from _clipping()
    batch = {"image": torch.zeros(3, 8, 8), "deep": [torch.zeros(2), ("key", torch.zeros(1))]}
    metrics, values = Metrics(), {"loss": torch.tensor(1.0), "hits": torch.tensor(0.5)}
    loader = [batch] * BATCHES
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = scale_lr(optimizer, 32, 64, warm_up_steps=10**9)
    optimizer.step()
    ran = compile(model, backend="eager")
    compiled = torch.compile(model, backend="eager")
    one = torch.zeros(1, 4)
    costs: dict[str, Callable[[], float]] = {
        "Every": _each(Every(100)),
        "Throttle": _each(Throttle(1.0)),
        "EvaluationBudget.due": _each(EvaluationBudget(first=10**9).due),
        "Metrics.add, two tensors": _each(lambda: metrics.add(**values)),
        "to_device, nothing to move": _each(lambda: to_device(batch, "cpu")),
        "scale_lr": _each(schedule.step),
        "Prefetcher": _more(lambda: Prefetcher(loader, "cpu"), lambda: loader),
        "accumulate(4)": _more(lambda: _entered(loader, model), lambda: loader),
        "compile, a call": _difference(lambda: ran(one), lambda: compiled(one)),
        "precision, fp16": _precise(),
    }
    for (name, _), taken in zip(costs.items(), in_turns(list(costs.values()), ROUNDS), strict=True):
        cost_us = max(0.0, median(taken)) * 1e6
        against = f"1% of a step of 10 ms: {MOST_US:g} µs"
        yield Line(f"{name}: µs per step", f"{cost_us:.2f} µs", against, cost_us, MOST_US, "at most")


def _clipping() -> Iterator[Line]:
    """Against the report's habit (every norm fetched at every step, then clipping) and against torch's own."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)) for _ in range(40)))
    model(torch.randn(8, 64)).square().sum().backward()
    parameters = list(model.parameters())
    clip = GradClip(1e9, every=100)
    by_hand, torchs, ours = in_turns(
        [
            _each(lambda: _norms_by_hand(parameters)),
            _each(lambda: nn.utils.clip_grad_norm_(parameters, 1e9, foreach=True)),
            _each(lambda: clip(parameters)),
        ],
        ROUNDS,
    )
    what, figure = f"GradClip, {len(parameters)} parameters", f"{median(ours) * 1e6:.0f} µs"
    hand, torch_s = f"{median(by_hand) * 1e6:.0f} µs", f"{median(torchs) * 1e6:.0f} µs"
    yield Line(
        f"{what}: quicker than by hand", figure, f"norms fetched: {hand}", median_ratio(by_hand, ours), 1.5, "at least"
    )
    yield Line(
        f"{what}: against torch's", figure, f"clip_grad_norm_: {torch_s}", median_ratio(ours, torchs), 1.3, "at most"
    )


def _norms_by_hand(parameters: list[nn.Parameter]) -> float:
    total = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            total += parameter.grad.data.norm(2).item() ** 2
    nn.utils.clip_grad_norm_(parameters, 1e9, foreach=False)
    return total**0.5


def _entered(loader: list[Any], model: nn.Module) -> Iterator[Any]:
    for batch, micro in accumulate(loader, 4, model):
        with micro:
            pass
        yield batch


def _precise() -> Callable[[], float]:
    """Autocast, scaling and the watch, around a step that does next to nothing."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    one = torch.zeros(1, 4)
    amp = precision(model, "fp16")
    scaler = torch.amp.GradScaler("cpu")

    def ours() -> None:
        with amp.autocast():
            loss = model(one).float().sum()
        amp.backward(loss)
        amp.step(optimizer)

    def by_hand() -> None:
        with torch.autocast("cpu", torch.float16):
            loss = model(one).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return _difference(ours, by_hand)


def _each(work: Callable[[], object]) -> Callable[[], float]:
    return lambda: 1 / rate(work, TURN_S)


def _difference(ours: Callable[[], object], plain: Callable[[], object]) -> Callable[[], float]:
    return lambda: 1 / rate(ours, TURN_S) - 1 / rate(plain, TURN_S)


def _more(ours: Callable[[], Iterable[Any]], plain: Callable[[], Iterable[Any]]) -> Callable[[], float]:
    """Seconds per batch beyond those of the plain loader."""

    def through(make: Callable[[], Iterable[Any]]) -> Callable[[], None]:
        def work() -> None:
            for _ in make():
                pass

        return work

    difference = _difference(through(ours), through(plain))
    return lambda: difference() / BATCHES
