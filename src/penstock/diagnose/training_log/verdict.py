"""A diagnosis from a plain training log: what it shows, what it cannot show, and the experiment that would decide."""

from __future__ import annotations

from itertools import pairwise

from penstock.core.finding import Diagnosis
from penstock.core.format import format_seconds
from penstock.diagnose.training_log.data_share import diagnose_shares
from penstock.diagnose.training_log.facts import rate
from penstock.diagnose.training_log.log_settings import LogSettings, resolve_settings
from penstock.diagnose.training_log.parsed_log import ProgressBar, TrainingLog
from penstock.diagnose.training_log.slow_batches import diagnose_stalls
from penstock.diagnose.training_log.trend import trend


def diagnose_log(log: TrainingLog, workers: int | None = None, batch_size: int | None = None) -> Diagnosis:
    """Slow batches say most, means of data time less, a rate alone next to nothing; `workers` and `batch_size` are
    the run's num_workers and batch size where the log does not name them, or names them wrongly.
    """
    settings = resolve_settings(log, workers, batch_size)
    found = diagnose_stalls(log, settings) or diagnose_shares(log, settings) or _rates(log, settings)
    read = ", ".join(f"{number:,} of {name}" for name, number in log.recognised.items())
    counted = f"{sum(log.recognised.values()):,} of the log's {log.lines:,} lines were recognised: {read}"
    return Diagnosis(
        verdict=found.verdict,
        sentence=found.sentence,
        findings=found.findings,
        rejected=found.rejected,
        experiment=found.experiment,
        impact=found.impact,
        notes=(*found.notes, *settings.notes, counted, *log.notes),
    )


def _rates(log: TrainingLog, settings: LogSettings) -> Diagnosis:
    """No line tells waiting from working."""
    facts = [*_bar_facts(log.bars, settings.batch_size), *_total_facts(log)]
    if log.slow:
        facts.append(f"one batch is called slow: #{log.slow[0].number}, {format_seconds(log.slow[0].seconds)}")
    known = f" ({facts[0]})" if facts else ""
    return Diagnosis(
        verdict="undetermined",
        sentence=f"The log does not say how long the loop waited for data{known}.",
        experiment="Run it under `penstock run`: it tells waiting from working, step by step.",
        notes=tuple(facts),
    )


def _bar_facts(bars: tuple[ProgressBar, ...], batch_size: int | None) -> list[str]:
    """Steps over time of each two bars in a row, where both went on."""
    steps = [
        (b.done, b.done - a.done, b.elapsed_s - a.elapsed_s)
        for a, b in pairwise(_far_apart(bars))
        if b.done > a.done and b.elapsed_s > a.elapsed_s
    ]
    if not steps:
        return []
    seconds = sum(taken for _, _, taken in steps)
    facts = [
        f"{rate(sum(done for _, done, _ in steps) / seconds, batch_size)} over {format_seconds(seconds)} by the bar"
    ]
    went = trend([taken / done for _, done, taken in steps])
    if went is not None and went.kind != "steady":
        place = f" from step {steps[went.at][0]} on" if went.kind == "changed" else ", bit by bit"
        facts.append(
            f"the time per step went from {format_seconds(went.before)} to {format_seconds(went.after)}{place}"
        )
    return facts


def _far_apart(bars: tuple[ProgressBar, ...]) -> list[ProgressBar]:
    """A bar's clock shows whole seconds: take only bars that are ten apart, or of another epoch."""
    kept: list[ProgressBar] = []
    for bar in bars:
        if not kept or bar.done < kept[-1].done or bar.elapsed_s - kept[-1].elapsed_s >= 10:
            kept.append(bar)
    return kept


def _total_facts(log: TrainingLog) -> list[str]:
    """The run as a whole, by its own summary."""
    facts = []
    for total in log.summaries:
        parts = (
            ("{:.3g} samples/s", total.samples_per_s),
            ("{:.3g} steps/s", total.steps_per_s),
            ("{:.0f} s in all", total.seconds),
        )
        if said := ", ".join(text.format(value) for text, value in parts if value is not None):
            facts.append(f"{said} by the log's summary")
    return facts
