"""Waits and steps of late, in windows of whole rounds of the workers; and what counts as slow in this run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SettingError
from penstock.recording.format import AnyLine, LoaderLine, StepLine, is_profiled_phase

WINDOW = 50
"""Batches of a window at least."""
HISTORY = 256
"""Waits that say what is usual."""
ENOUGH = 10
"""Waits to have seen before any is called slow."""
EVERY = 16
"""Batches between two looks at the history: what is usual does not change faster."""
SPREADS = 6.0
FLOOR_S = 1e-3
STEP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """One window of one loader."""

    loader: int
    name: str
    total: int
    """Batches of this loader so far."""
    batches: int
    """In the window: a whole number of rounds of the workers, for any other mean misleads."""
    wait_mean_s: float
    wait_p50_s: float
    wait_p99_s: float
    wait_max_s: float
    wait_std_s: float
    slow: int
    """Batches of the window that were slow."""
    step_mean_s: float
    """The loop's own time per batch."""
    samples_per_s: float | None
    """Over waits and steps; None where the batches do not say how many samples they have."""
    phases: dict[str, float] = field(default_factory=dict)
    """Mean seconds per batch by name, a batch without the phase counted as 0, one that was not looked at not at all."""

    def numbers(self) -> dict[str, float]:
        """All that can be plotted, by name."""
        numbers = {
            "wait_mean_s": self.wait_mean_s,
            "wait_p50_s": self.wait_p50_s,
            "wait_p99_s": self.wait_p99_s,
            "wait_max_s": self.wait_max_s,
            "wait_std_s": self.wait_std_s,
            "slow_batches": float(self.slow),
            "step_mean_s": self.step_mean_s,
        }
        if self.samples_per_s is not None:
            numbers["samples_per_s"] = self.samples_per_s
        return numbers | {f"phase/{name}_s": seconds for name, seconds in self.phases.items()}


class BatchWindow:
    """The batches of one loader since the last summary, and what is usual for it."""

    def __init__(
        self, loader: int, name: str = "", workers: int = 0, size: int = WINDOW, slow_s: float | None = None
    ) -> None:
        self.name = name
        self.workers = workers
        self._loader = loader
        self._round = max(1, workers)
        self._size = -(-size // self._round) * self._round
        self._slow_s = slow_s
        self._steps: list[tuple[StepLine, bool]] = []
        self._looked: dict[str, float] = {}
        self._waits = np.empty(HISTORY)
        self._own = np.empty(HISTORY)
        self._total = 0
        self._limit_s = float("inf") if slow_s is None else slow_s

    @property
    def limit_s(self) -> float:
        """A longer wait is slow: what the user said, or else what is far out of this run's own range.

        That is the median wait of the last 256 batches plus the largest of: six times the spread (1.4826 × the median
        distance from the median, which is the standard deviation where waits are bell-shaped), a tenth of the median
        step, and 1 ms. Looked at every 16 batches; infinite before the tenth.
        """
        return self._limit_s

    def add(self, step: StepLine) -> tuple[bool, WindowSummary | None]:
        """Whether the batch was slow, and a summary when it fills the window."""
        slow = step.wait_s > self._limit_s
        self._steps.append((step, slow))
        self._total += 1
        if self._slow_s is None:
            self._remember(step)
        return slow, self._summary(self._size) if len(self._steps) == self._size else None

    def rest(self) -> WindowSummary | None:
        """What is left at the end, in whole rounds; None if it is less than one."""
        whole = len(self._steps) // self._round * self._round
        return self._summary(whole) if whole else None

    def _remember(self, step: StepLine) -> None:
        at = (self._total - 1) % HISTORY
        self._waits[at] = step.wait_s
        self._own[at] = step.step_s
        if self._total == ENOUGH or self._total % EVERY == 0:
            waits, own = self._waits[: self._total], self._own[: self._total]
            median = _median(waits)
            spread = 1.4826 * _median(np.abs(waits - median))
            self._limit_s = median + max(SPREADS * spread, STEP_SHARE * _median(own), FLOOR_S)

    def _summary(self, count: int) -> WindowSummary:
        steps, self._steps = self._steps[-count:], []
        waits = np.array([step.wait_s for step, _ in steps])
        step_mean_s = sum(step.step_s for step, _ in steps) / count
        p50, p99 = np.percentile(waits, (50, 99))
        mean = float(waits.mean())
        samples = [step.samples for step, _ in steps if step.samples is not None]
        seconds = count * (mean + step_mean_s)
        return WindowSummary(
            loader=self._loader,
            name=self.name,
            total=self._total,
            batches=count,
            wait_mean_s=mean,
            wait_p50_s=float(p50),
            wait_p99_s=float(p99),
            wait_max_s=float(waits.max()),
            wait_std_s=float(waits.std()),
            slow=sum(slow for _, slow in steps),
            step_mean_s=step_mean_s,
            samples_per_s=sum(samples) / seconds if len(samples) == count and seconds > 0 else None,
            phases=self._phases([step for step, _ in steps]),
        )

    def _phases(self, steps: list[StepLine]) -> dict[str, float]:
        """A window in which no step was looked at has what the one before had."""
        profiled = [step.phases for step in steps if step.profiled]
        if profiled:
            self._looked = {path: s for path, s in _means(profiled).items() if is_profiled_phase(path)}
        every = _means([step.phases for step in steps])
        return self._looked | {path: s for path, s in every.items() if not is_profiled_phase(path)}


class BatchWindows:
    """A window for every loader of the run."""

    def __init__(self, size: int | None = None, slow_s: float | None = None) -> None:
        if size is not None and size < 1:
            raise SettingError(f"a window of {size} batches has nothing in it", advice="Give at least 1")
        if slow_s is not None and not slow_s > 0:
            raise SettingError(f"slow_s={slow_s}: it takes a positive number of seconds to be slow")
        self._size = WINDOW if size is None else size
        self._slow_s = slow_s
        self._windows: dict[int, BatchWindow] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def meet(self, line: LoaderLine) -> None:
        """A loader says its name and how many workers it has."""
        setting = line.settings.get("num_workers")
        workers = setting.in_force if setting is not None and isinstance(setting.in_force, int) else 0
        self._windows[line.loader] = BatchWindow(line.loader, line.name, workers, self._size, self._slow_s)

    def of(self, loader: int) -> BatchWindow:
        """Its window; one is made for a loader that never said anything."""
        window = self._windows.get(loader)
        if window is None:
            window = self._windows[loader] = BatchWindow(loader, "", 0, self._size, self._slow_s)
        return window

    def put(self, line: AnyLine) -> WindowSummary | None:
        """A summary when this line fills a window: for those who want no more than that."""
        if isinstance(line, StepLine):
            return self.of(line.loader).add(line)[1]
        if isinstance(line, LoaderLine):
            self.meet(line)
        return None

    def rest(self) -> Iterator[WindowSummary]:
        """What is left in each at the end."""
        for window in self._windows.values():
            if (summary := window.rest()) is not None:
                yield summary


def _median(values: NDArray[np.float64]) -> float:
    """The upper one of an even number: np.median takes nine times as long."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])


def _means(phases: list[dict[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for each in phases:
        for name, seconds in each.items():
            sums[name] = sums.get(name, 0.0) + seconds
    return {name: seconds / len(phases) for name, seconds in sums.items()}
