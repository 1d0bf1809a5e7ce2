"""Lines for whoever sits before the terminal: one per window, one per slow batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf

from penstock.core.format import format_short
from penstock.errors import printable
from penstock.recording.format import AnyLine, LoaderLine, StepLine
from penstock.watcher.rank_files import rank_and_world
from penstock.watcher.sinks.async_sink import AsyncSink
from penstock.watcher.stall_guess import StallHistory
from penstock.watcher.window import BatchWindow, BatchWindows, WindowSummary

BETWEEN_S = 1.0
"""Slow batches that follow sooner are counted, not printed; windows of a loader that do are not printed either."""
SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
"""Phases in a progress bar's postfix."""


def terminal() -> bool:
    """Whether somebody may be reading stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def say(text: str) -> None:
    """To stderr, above whatever progress bars are being drawn (rich's look after themselves: they replace stderr)."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if bars is not None and len(getattr(bars, "_instances", ())):
        bars.write(text, file=sys.stderr)
    elif sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class LiveLines(AsyncSink):
    """A sink that prints. `window` is how many batches a line is about, rounded up to whole rounds of the workers."""

    def __init__(
        self,
        write: Callable[[str], None] = say,
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
        self._last_s: float | None = None
        self._more = 0
        self._windows_from_s: dict[int, float] = {}
        """By loader: when a window may be printed again."""
        self._loader = -1
        """The one that gave the last batch."""
        self._postfixes: dict[int, dict[str, str]] = {}

    def postfix(self) -> dict[str, str]:
        """`bar.set_postfix(live.postfix())`: ms per batch, in the last window of the loader in use."""
        return self._postfixes.get(self._loader, {})

    def take(self, line: AnyLine) -> None:
        """Print what there is to say about it."""
        if isinstance(line, LoaderLine):
            self._windows.meet(line)
        elif isinstance(line, StepLine):
            self._loader = line.loader
            window = self._windows.of(line.loader)
            slow, summary = window.add(line)
            if slow:
                self._slow(line, window)
            if summary is not None:
                self._window(summary, line.at_s + line.wait_s + line.step_s)

    def end(self) -> None:
        """What the last windows have so far; nothing where the terminal failed before."""
        if not self.off:
            for summary in self._windows.rest():
                self._window(summary)

    def _window(self, summary: WindowSummary, now_s: float = inf) -> None:
        self._postfixes[summary.loader] = postfix(summary)
        if now_s >= self._windows_from_s.get(summary.loader, 0.0):
            self._windows_from_s[summary.loader] = now_s + BETWEEN_S
            self._print(window_line(summary, named=len(self._windows) > 1))

    def _slow(self, step: StepLine, window: BatchWindow) -> None:
        stalls = self._stalls.setdefault(step.loader, StallHistory(window.workers))
        guess = stalls.guess(step)
        now = step.at_s + step.wait_s
        if self._last_s is not None and now - self._last_s < BETWEEN_S:
            self._more += 1
            return
        parts = [slow_line(step, window)]
        if guess is not None:
            parts.append(f"{guess.kind} ({guess.score:.2f})")
        if len(self._windows) > 1 and window.name:
            parts.append(printable(window.name))
        text = " · ".join(parts)
        self._print(f"{text} (+{self._more} more)" if self._more else text)
        self._last_s, self._more = now, 0

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._write(text)


def window_line(summary: WindowSummary, *, named: bool = False) -> str:
    """`[DATA] last 64 batches: wait mean 12.3 ms, p50 0.4, p99 310, max 22409, std 3137, 2 slow · step 160 ms · …`."""
    whose = f" of {printable(summary.name)}" if named and summary.name else ""
    wait = (
        f"wait mean {_ms(summary.wait_mean_s)} ms, p50 {_ms(summary.wait_p50_s)}, p99 {_ms(summary.wait_p99_s)}, "
        f"max {_ms(summary.wait_max_s)}, std {_ms(summary.wait_std_s)}, {summary.slow} slow"
    )
    rate = "" if summary.samples_per_s is None else f" · {format_short(summary.samples_per_s)} samples/s"
    return f"[DATA] last {summary.batches} batches{whose}: {wait} · step {_ms(summary.step_mean_s)} ms{rate}"


def slow_line(step: StepLine, window: BatchWindow) -> str:
    """`[SLOW BATCH #2950] 20.69s waiting on worker 6 · ready 372/384`: as much of it as is known."""
    wait = f"{step.wait_s:.2f}s" if step.wait_s >= 1 else f"{_ms(step.wait_s)}ms"
    on = f" on worker {step.worker}" if step.worker is not None and step.worker >= 0 else ""
    text = f"[SLOW BATCH #{step.batch}] {wait} waiting{on}"
    if step.batch == 0:
        text += f" · first of pass {step.epoch}"
    if window.workers and step.ready is not None and step.outstanding is not None:
        text += f" · ready {step.ready}/{step.outstanding}"
    return text


def postfix(summary: WindowSummary) -> dict[str, str]:
    """`data= fwd= bwd= opt=` and the other outermost phases of the step, in ms; the sampler's time is in `data`.

    Lightning and LBFGS have the optimizer call forward and backward: they are shown by themselves and not in `opt`.
    """
    phases = {name: seconds for name, seconds in summary.phases.items() if "/" not in name and name != "sampler"}
    for name in ("forward", "backward"):
        inside_s = summary.phases.get(f"optimizer/{name}", 0.0)
        if inside_s and "optimizer" in phases:
            phases[name] = phases.get(name, 0.0) + inside_s
            phases["optimizer"] -= inside_s
    order = [*(name for name in SHORT if name in phases), *(name for name in phases if name not in SHORT)]
    return {"data": _ms(summary.wait_mean_s)} | {SHORT.get(name, name): _ms(phases[name]) for name in order}


def _ms(seconds: float) -> str:
    return format_short(seconds * 1e3)
