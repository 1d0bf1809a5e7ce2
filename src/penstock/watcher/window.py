"""Summaries of a loader's latest batches: their waits, steps and phases, and which of the waits were slow.

A window holds whole rounds of the workers. In a round each worker delivers one batch, and since workers may differ, the
mean over a part of a round would mislead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.errors import SettingError
from penstock.recording.format import AnyLine, LoaderLine, StepLine, is_profiled_phase

WINDOW = 50
"""Default for the least number of batches in a window."""
HISTORY = 256
"""Number of latest waits that define which waits are usual."""
MIN_HISTORY = 10
"""Number of waits before any is called slow."""
UPDATE_EVERY = 16
"""Batches between two updates of the limit: what is usual does not change faster."""
SPREADS = 6.0
STEP_SHARE = 0.1
FLOOR_S = 1e-3
"""How far above the median wait the limit lies at least: in spreads, in median steps, in seconds. See `limit_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """The numbers of one window of one loader."""

    loader: int
    name: str
    total: int
    """Batches of this loader so far."""
    batches: int
    """Batches of the window."""
    wait_mean_s: float
    wait_p50_s: float
    wait_p99_s: float
    wait_max_s: float
    wait_std_s: float
    slow: int
    """Batches of the window that were slow."""
    step_mean_s: float
    """Mean seconds that the training loop worked on a batch."""
    samples_per_s: float | None
    """Samples per second of waits and steps together; None if the size of a batch is not known."""
    phases: dict[str, float] = field(default_factory=dict)
    """Mean seconds per batch by phase. A batch without the phase counts as 0.

    For phases that only profiled steps have, the mean is over the profiled steps."""

    def numbers(self) -> dict[str, float]:
        """Return all numbers that can be plotted, by name."""
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
    """The batches of one loader since its last summary, and the limit above which its waits are slow."""

    def __init__(
        self, loader: int, name: str = "", workers: int = 0, size: int = WINDOW, slow_s: float | None = None
    ) -> None:
        """Make an empty window.

        `size` is the number of batches, which is rounded up to whole rounds of the workers. `slow_s` is the wait in
        seconds above which a batch is slow; None derives a limit from the run itself.
        """
        self.name = name
        self.workers = workers
        self._loader = loader
        self._round = max(1, workers)
        self._size = -(-size // self._round) * self._round
        self._slow_s = slow_s
        self._steps: list[tuple[StepLine, bool]] = []
        """The steps of the window, each with whether it was slow."""
        self._profiled_means: dict[str, float] = {}
        """Mean seconds of the profiled phases in the last window that had a profiled step."""
        self._recent_waits = np.empty(HISTORY)
        self._recent_steps = np.empty(HISTORY)
        """Seconds of the waits and of the steps of the last HISTORY batches, as ring buffers."""
        self._total = 0
        self._limit_s = float("inf") if slow_s is None else slow_s

    @property
    def limit_s(self) -> float:
        """A longer wait is slow: the user's `slow_s`, or else a limit that waits of this run rarely exceed.

        That limit is the median wait of the last 256 batches plus the largest of: six times the spread (1.4826 × the
        median distance from the median, which is the standard deviation if waits are normally distributed), a tenth of
        the median step, and 1 ms. It is updated every 16 batches, and infinite before the tenth.
        """
        return self._limit_s

    def add(self, step: StepLine) -> tuple[bool, WindowSummary | None]:
        """Add a step; return whether its wait was slow, and the summary if it completes the window."""
        slow = step.wait_s > self._limit_s
        self._steps.append((step, slow))
        self._total += 1
        if self._slow_s is None:
            self._update_limit(step)
        return slow, self._summary(self._size) if len(self._steps) == self._size else None

    def rest(self) -> WindowSummary | None:
        """Return the summary of the latest whole rounds of an incomplete window; None if there is no whole round."""
        count = len(self._steps) // self._round * self._round
        return self._summary(count) if count else None

    def _update_limit(self, step: StepLine) -> None:
        at = (self._total - 1) % HISTORY
        self._recent_waits[at] = step.wait_s
        self._recent_steps[at] = step.step_s
        if self._total == MIN_HISTORY or self._total % UPDATE_EVERY == 0:
            waits, steps = self._recent_waits[: self._total], self._recent_steps[: self._total]
            median = _median(waits)
            spread = 1.4826 * _median(np.abs(waits - median))
            self._limit_s = median + max(SPREADS * spread, STEP_SHARE * _median(steps), FLOOR_S)

    def _summary(self, count: int) -> WindowSummary:
        """Return the summary of the last `count` steps, and empty the window."""
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
            phases=self._phase_means([step for step, _ in steps]),
        )

    def _phase_means(self, steps: list[StepLine]) -> dict[str, float]:
        """Return the mean of each phase; without a profiled step, those of the window before for profiled phases."""
        profiled = [step.phases for step in steps if step.profiled]
        if profiled:
            self._profiled_means = {path: s for path, s in _means(profiled).items() if is_profiled_phase(path)}
        all_means = _means([step.phases for step in steps])
        return self._profiled_means | {path: s for path, s in all_means.items() if not is_profiled_phase(path)}


class BatchWindows:
    """The windows of all loaders of a run."""

    def __init__(self, size: int | None = None, slow_s: float | None = None) -> None:
        """Make the windows with a size and a limit as of `BatchWindow`; None takes the defaults."""
        if size is not None and size < 1:
            raise SettingError(f"window={size} is not a positive number of batches", advice="Give at least 1")
        if slow_s is not None and not slow_s > 0:
            raise SettingError(f"slow_s={slow_s} is not a positive number of seconds")
        self._size = WINDOW if size is None else size
        self._slow_s = slow_s
        self._windows: dict[int, BatchWindow] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def add_loader(self, line: LoaderLine) -> None:
        """Make the window of a loader, with its name and number of workers."""
        setting = line.settings.get("num_workers")
        workers = setting.in_force if setting is not None and isinstance(setting.in_force, int) else 0
        self._windows[line.loader] = BatchWindow(line.loader, line.name, workers, self._size, self._slow_s)

    def of(self, loader: int) -> BatchWindow:
        """Return the window of a loader. A loader without a LoaderLine gets one without a name and workers."""
        window = self._windows.get(loader)
        if window is None:
            window = self._windows[loader] = BatchWindow(loader, "", 0, self._size, self._slow_s)
        return window

    def put(self, line: AnyLine) -> WindowSummary | None:
        """Handle any line of a recording; return a summary if it completes a window."""
        if isinstance(line, StepLine):
            return self.of(line.loader).add(line)[1]
        if isinstance(line, LoaderLine):
            self.add_loader(line)
        return None

    def rest(self) -> Iterator[WindowSummary]:
        """Yield the summaries of the incomplete windows at the end of a run."""
        for window in self._windows.values():
            if (summary := window.rest()) is not None:
                yield summary


def _median(values: NDArray[np.float64]) -> float:
    """Return the median, for an even count the upper of the two middle values: np.median takes nine times as long."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])


def _means(phases: list[dict[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for step_phases in phases:
        for name, seconds in step_phases.items():
            sums[name] = sums.get(name, 0.0) + seconds
    return {name: seconds / len(phases) for name, seconds in sums.items()}
