"""The live output of `penstock run`: one line when what the run waits for changes, otherwise at most one a minute.

A line summarises all steps since the last evaluation, so it does not depend on single batches. The suspicion changes
only with the evidence: between two limits of the share of waiting, and as long as the long waits do not agree on
another kind of stall, it stays as it is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.format import format_duration, format_percent, format_short
from penstock.errors import printable
from penstock.recording.format import AnyLine, LoaderLine, StepLine
from penstock.watcher.rank_files import rank_and_world
from penstock.watcher.sinks.async_sink import AsyncSink
from penstock.watcher.sinks.terminal import print_above_bars
from penstock.watcher.stall_guess import StallHistory
from penstock.watcher.window import BatchWindow, BatchWindows

EVALUATE_EVERY_S = 5.0
"""Seconds of the run between two evaluations; long enough for whole rounds of the workers in most trainings."""
MIN_STEPS = 16
"""Steps of a loader before it is evaluated."""
REPEAT_EVERY_S = 60.0
"""Seconds after which the same suspicion is printed again, with its present numbers."""
WAITS_FROM, WAITS_NOT_BELOW = 0.1, 0.05
"""Share of waiting from which a run waits for data, and below which it no longer does."""
RECENT = 16
"""Latest long waits that suggest the kind of a stall."""
AGREEING = 2 / 3
"""Share of them that must agree on a kind before the suspicion changes to it."""
MIN_AGREEING = 3
STARTING = "starting workers at each epoch"
IN_TIME = "data arrives in time"


@dataclass(slots=True)
class _Loader:
    """The steps of one loader since the last evaluation, and what it seems to wait for."""

    window: BatchWindow
    stalls: StallHistory
    kinds: deque[str | None] = field(default_factory=lambda: deque(maxlen=RECENT))
    """The kind of each of the latest long waits; None where it was not clear."""
    trains: bool = False
    """Whether its batches are followed by backward or an optimizer step."""
    steps: int = 0
    samples: int | None = 0
    wait_s: float = 0.0
    start_s: float = 0.0
    """The part of `wait_s` in the first batch of epochs, for which workers start."""
    step_s: float = 0.0
    longest_s: float = 0.0
    longest_worker: int | None = None
    suspicion: str | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the last evaluation."""
        return self.wait_s + self.step_s

    def add(self, step: StepLine) -> None:
        """Count a step."""
        slow, _ = self.window.add(step)
        if step.batch and (slow or step.wait_s > WAITS_FROM * (step.wait_s + step.step_s)):
            guess = self.stalls.guess(step)
            self.kinds.append(None if guess is None else guess.kind)
        self.steps += 1
        self.samples = None if self.samples is None or step.samples is None else self.samples + step.samples
        self.wait_s += step.wait_s
        self.step_s += step.step_s
        self.start_s += step.wait_s if step.batch == 0 else 0.0
        self.trains = self.trains or any(name in ("backward", "optimizer") for name in step.phases)
        if step.wait_s > self.longest_s:
            self.longest_s, self.longest_worker = step.wait_s, step.worker

    def forget(self) -> None:
        """Begin the next evaluation."""
        self.steps, self.samples = 0, 0
        self.wait_s = self.start_s = self.step_s = self.longest_s = 0.0
        self.longest_worker = None

    def evaluated(self) -> str:
        """Return the suspicion by what was counted; the earlier one where that decides nothing."""
        share, earlier = self.wait_s / self.seconds, self.suspicion
        if share < WAITS_NOT_BELOW or (share < WAITS_FROM and earlier in (None, IN_TIME)):
            return IN_TIME
        if self.start_s > self.wait_s / 2:
            return STARTING
        kind, count = Counter(self.kinds).most_common(1)[0] if self.kinds else (None, 0)
        if earlier is not None and 0 < len(self.kinds) < MIN_AGREEING:
            return earlier
        if kind is not None and count >= max(MIN_AGREEING, AGREEING * len(self.kinds)):
            return kind
        return earlier if earlier not in (None, IN_TIME, STARTING) else "waiting for data"


class SuspicionLines(AsyncSink):
    """A sink that prints what the run seems to wait for. Only rank 0 prints."""

    def __init__(self, write: Callable[[str], None] = print_above_bars, *, slow_s: float | None = None) -> None:
        super().__init__()
        self._write = write
        self._quiet = rank_and_world()[0] != 0
        self._windows = BatchWindows(slow_s=slow_s)
        self._loaders: dict[int, _Loader] = {}
        self._printed: tuple[int, str] | None = None
        """The loader and the suspicion that were printed last."""
        self._printed_s = 0.0
        self._next_s = EVALUATE_EVERY_S

    def handle(self, line: AnyLine) -> None:
        """Count a step, and evaluate from time to time."""
        if isinstance(line, LoaderLine):
            self._windows.add_loader(line)
        elif isinstance(line, StepLine):
            loader = self._loaders.get(line.loader)
            if loader is None:
                window = self._windows.of(line.loader)
                loader = self._loaders[line.loader] = _Loader(window, StallHistory(window.workers))
            loader.add(line)
            now_s = line.at_s + line.wait_s + line.step_s
            if now_s >= self._next_s:
                self._evaluate(now_s)

    def finish(self) -> None:
        """Print nothing: the verdict follows."""

    def _evaluate(self, now_s: float) -> None:
        self._next_s = now_s + EVALUATE_EVERY_S
        number = max(self._loaders, key=lambda each: self._loaders[each].wait_s)
        loader = self._loaders[number]
        if loader.steps < MIN_STEPS or not loader.seconds > 0:
            return
        loader.suspicion = loader.evaluated()
        is_new = (number, loader.suspicion) != self._printed
        if is_new or now_s - self._printed_s >= REPEAT_EVERY_S:
            self._printed, self._printed_s = (number, loader.suspicion), now_s
            if not self._quiet:
                self._write(self._text(number, loader))
        for each in self._loaders.values():
            each.forget()

    def _text(self, number: int, loader: _Loader) -> str:
        share = format_percent(loader.wait_s / loader.seconds)
        parts = [f"penstock: {loader.suspicion}", f"{share} of the time is waiting"]
        if len(self._loaders) > 1:
            parts.append(printable(loader.window.name) or self._role(number))
        if loader.samples:
            parts.append(f"{format_short(loader.samples / loader.seconds)} samples/s")
        if loader.suspicion != IN_TIME:
            worker = loader.longest_worker
            on = f" for worker {worker}" if worker is not None and worker >= 0 else ""
            parts.append(f"longest wait {format_duration(loader.longest_s)}{on}")
        return " · ".join(parts)

    def _role(self, number: int) -> str:
        """Return what a loader without a name feeds, with its number if another one feeds the same."""
        trains = self._loaders[number].trains
        role = "train" if trains else "val"
        alike = [each for each, loader in self._loaders.items() if loader.trains == trains and not loader.window.name]
        return role if len(alike) == 1 else f"{role} {alike.index(number) + 1}"
