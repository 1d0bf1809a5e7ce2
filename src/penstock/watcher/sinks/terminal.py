"""A sink that prints to the terminal: one line per window of batches, and one per slow batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf

from penstock.core.format import format_short
from penstock.core.text import encodable
from penstock.errors import printable
from penstock.recording.format import AnyLine, LoaderLine, StepLine
from penstock.watcher.rank_files import rank_and_world
from penstock.watcher.sinks.async_sink import AsyncSink
from penstock.watcher.stall_guess import StallHistory
from penstock.watcher.window import BatchWindow, BatchWindows, WindowSummary

MIN_INTERVAL_S = 1.0
"""Seconds between two printed slow batches; those in between are only counted. Also between two windows of a loader."""
SHORT_NAMES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
"""Short names of phases in the postfix of a progress bar."""


def stderr_is_terminal() -> bool:
    """Return whether stderr is a terminal, so that a person may be reading it."""
    return sys.stderr is not None and sys.stderr.isatty()


def print_above_bars(text: str) -> None:
    """Print to stderr, above the progress bars of tqdm. The bars of rich need nothing: they replace stderr."""
    if sys.stderr is not None:
        text = encodable(text, sys.stderr.encoding or "ascii")
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if bars is not None and len(getattr(bars, "_instances", ())):
        bars.write(text, file=sys.stderr)
    elif sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class LiveLines(AsyncSink):
    """A sink that prints. Only rank 0 prints; the postfix for a progress bar is available on every rank.

    `window` is the number of batches that one line summarises, rounded up to whole rounds of the workers. `slow_s` is
    the wait in seconds above which a batch counts as slow. The default of `rank` is the rank that the launcher set.
    """

    def __init__(
        self,
        write: Callable[[str], None] = print_above_bars,
        *,
        window: int | None = None,
        slow_s: float | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__()
        self._write = write
        self._quiet = (rank_and_world()[0] if rank is None else rank) != 0
        self._windows = BatchWindows(window, slow_s)
        self._stalls: dict[int, StallHistory] = {}
        self._last_slow_s: float | None = None
        """When a slow batch was last printed."""
        self._not_printed = 0
        """Slow batches since then."""
        self._next_window_s: dict[int, float] = {}
        """When a window may be printed again, by loader."""
        self._loader = -1
        """The loader that delivered the last batch."""
        self._postfixes: dict[int, dict[str, str]] = {}
        """The postfix of the last window, by loader."""

    def postfix(self) -> dict[str, str]:
        """Return ms per batch in the last window of the loader in use, for `bar.set_postfix(live.postfix())`."""
        return self._postfixes.get(self._loader, {})

    def handle(self, line: AnyLine) -> None:
        """Print the batch if it was slow, and the window if it is full."""
        if isinstance(line, LoaderLine):
            self._windows.add_loader(line)
        elif isinstance(line, StepLine):
            self._loader = line.loader
            window = self._windows.of(line.loader)
            slow, summary = window.add(line)
            if slow:
                self._on_slow_batch(line, window)
            if summary is not None:
                self._on_window(summary, line.at_s + line.wait_s + line.step_s)

    def finish(self) -> None:
        """Print the windows that are not full, unless the terminal has failed before."""
        if not self.disabled:
            for summary in self._windows.rest():
                self._on_window(summary)

    def _on_window(self, summary: WindowSummary, now_s: float = inf) -> None:
        self._postfixes[summary.loader] = postfix(summary)
        if now_s >= self._next_window_s.get(summary.loader, 0.0):
            self._next_window_s[summary.loader] = now_s + MIN_INTERVAL_S
            self._print(window_line(summary, named=len(self._windows) > 1))

    def _on_slow_batch(self, step: StepLine, window: BatchWindow) -> None:
        stalls = self._stalls.setdefault(step.loader, StallHistory(window.workers))
        guess = stalls.guess(step)
        now_s = step.at_s + step.wait_s
        if self._last_slow_s is not None and now_s - self._last_slow_s < MIN_INTERVAL_S:
            self._not_printed += 1
            return
        parts = [slow_line(step, window)]
        if guess is not None:
            parts.append(guess.kind if guess.sure else f"perhaps {guess.kind}")
        if len(self._windows) > 1 and window.name:
            parts.append(printable(window.name))
        text = " · ".join(parts)
        self._print(f"{text} (+{self._not_printed} more)" if self._not_printed else text)
        self._last_slow_s, self._not_printed = now_s, 0

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._write(text)


def window_line(summary: WindowSummary, *, named: bool = False) -> str:
    """Return `[DATA] last 64 batches: wait mean 12.3 ms, p50 0.4, p99 310, max 22409, std 3137, 2 slow · step …`."""
    loader = f" of {printable(summary.name)}" if named and summary.name else ""
    wait = (
        f"wait mean {_ms(summary.wait_mean_s)} ms, p50 {_ms(summary.wait_p50_s)}, p99 {_ms(summary.wait_p99_s)}, "
        f"max {_ms(summary.wait_max_s)}, std {_ms(summary.wait_std_s)}, {summary.slow} slow"
    )
    rate = "" if summary.samples_per_s is None else f" · {format_short(summary.samples_per_s)} samples/s"
    return f"[DATA] last {summary.batches} batches{loader}: {wait} · step {_ms(summary.step_mean_s)} ms{rate}"


def slow_line(step: StepLine, window: BatchWindow) -> str:
    """Return `[SLOW BATCH #2950] 20.69s waiting on worker 6 · ready 372/384`, without the parts that are not known."""
    wait = f"{step.wait_s:.2f}s" if step.wait_s >= 1 else f"{_ms(step.wait_s)}ms"
    on = f" on worker {step.worker}" if step.worker is not None and step.worker >= 0 else ""
    text = f"[SLOW BATCH #{step.batch}] {wait} waiting{on}"
    if step.batch == 0:
        text += f" · first of epoch {step.epoch}"
    if window.workers and step.ready is not None and step.outstanding is not None:
        text += f" · ready {step.ready}/{step.outstanding}"
    return text


def postfix(summary: WindowSummary) -> dict[str, str]:
    """Return `data`, `fwd`, `bwd`, `opt` and the other outermost phases of the step in ms; `data` includes the sampler.

    In Lightning and with LBFGS the optimizer calls forward and backward; their time is then subtracted from `opt`.
    """
    phases = {name: seconds for name, seconds in summary.phases.items() if "/" not in name and name != "sampler"}
    for name in ("forward", "backward"):
        inside_s = summary.phases.get(f"optimizer/{name}", 0.0)
        if inside_s and "optimizer" in phases:
            phases[name] = phases.get(name, 0.0) + inside_s
            phases["optimizer"] -= inside_s
    order = [*(name for name in SHORT_NAMES if name in phases), *(name for name in phases if name not in SHORT_NAMES)]
    return {"data": _ms(summary.wait_mean_s)} | {SHORT_NAMES.get(name, name): _ms(phases[name]) for name in order}


def _ms(seconds: float) -> str:
    return format_short(seconds * 1e3)
