"""`penstock verify`: the answer of a verification, its runs, and the history of earlier ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Group
from rich.text import Text

from penstock.core.format import format_count, format_number
from penstock.errors import printable
from penstock.report.text import table
from penstock.verify.history import GOOD_ERROR, ModelError, VerificationEntry, VerificationHistory, model_error
from penstock.verify.judge import Judgement
from penstock.verify.trials import Trial

_COLUMNS = ("run", "samples/s", "waiting", "steps", "workers", "page cache")
_HISTORY = ("when", "plan", "predicted", "measured, 95%", "error", "")


def verification_text(judgement: Judgement, trials: Sequence[Trial], notes: Sequence[str] = ()) -> Group:
    """Return the answer, the prediction, the runs and the notes for a terminal."""
    unit = trials[0].unit if trials else _COLUMNS[1]
    columns = tuple(unit if column == _COLUMNS[1] else column for column in _COLUMNS)
    grid = table("the runs, in order", columns, (_trial_row(trial) for trial in trials), right=columns[1:5])
    sentences = [answer_sentence(judgement), prediction_sentence(judgement)]
    return Group(*_texts(sentences), Text(), grid, *_texts(all_notes(judgement, trials, notes)))


def verification_document(judgement: Judgement, trials: Sequence[Trial], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the verification as plain values for JSON."""
    document = asdict(judgement)
    document |= {"ratio": judgement.ratio, "gain": judgement.gain, "model_error": judgement.model_error}
    document["sentence"] = answer_sentence(judgement)
    document["cold"] = all_cold(trials)
    document["runs"] = [
        {
            "settings": trial.run.settings,
            "number": trial.run.number,
            "rate": trial.rate,
            "unit": trial.unit,
            "steps": len(trial.measure.numerator),
            "workers": trial.measure.workers,
            "wait_share": trial.wait_share,
            "cold": trial.cold,
        }
        for trial in trials
    ]
    document["notes"] = list(all_notes(judgement, trials, notes))
    return document


def all_cold(trials: Sequence[Trial]) -> bool:
    """Return whether every run was cold; only then is the result."""
    return bool(trials) and all(trial.cold for trial in trials)


def all_notes(judgement: Judgement, trials: Sequence[Trial], notes: Sequence[str]) -> Iterator[str]:
    """Yield each note once, although several runs may have it."""
    if trials and trials[0].unit != _COLUMNS[1]:
        yield f"Samples could not be counted: rates are in {trials[0].unit}."
    yield from dict.fromkeys([*notes, *(note for trial in trials for note in trial.notes), *judgement.notes])


def answer_sentence(judgement: Judgement) -> str:
    """Return a sentence on whether the plan makes the training faster."""
    rates = f"{format_number(judgement.before_samples_s)} → {format_number(judgement.after_samples_s)}"
    if judgement.low is None or judgement.high is None:
        return f"Inconclusive: {rates}, {judgement.gain:+.0%}, in too short a time to distinguish it from chance."
    span = f"95%: {judgement.low - 1:+.0%} to {judgement.high - 1:+.0%}"
    if judgement.answer == "inconclusive":
        return f"Inconclusive: {rates}, {judgement.gain:+.0%}, which may be chance ({span})."
    return f"{judgement.answer.capitalize()}: {rates}, {judgement.gain:+.0%} ({span})."


def prediction_sentence(judgement: Judgement) -> str:
    """Return a sentence on the error of the prediction; "" if the plan predicted nothing."""
    if judgement.predicted_gain is None or judgement.model_error is None:
        return ""
    sentence = f"Predicted {judgement.predicted_gain:+.0%}, measured {judgement.gain:+.0%}"
    if judgement.low is not None and judgement.high is not None:
        inside = judgement.low <= 1 + judgement.predicted_gain <= judgement.high
        sentence += ", within the interval" if inside else ", outside the interval"
    side = "above" if judgement.model_error >= 0 else "below"
    return f"{sentence}: the predicted rate is {abs(judgement.model_error):.0%} {side} the measured one."


def history_text(history: VerificationHistory) -> Group:
    """Return all earlier verifications, and the model's error over them."""
    grid = table("verifications", _HISTORY, (_entry_row(entry) for entry in history.entries), right=_HISTORY[2:5])
    return Group(grid, *_texts(history_sentences(history)))


def history_document(history: VerificationHistory) -> dict[str, Any]:
    """Return the history as plain values for JSON."""
    error = model_error(history.entries)
    entries = [{**msgspec.to_builtins(entry), "error": entry.error} for entry in history.entries]
    return {"entries": entries, "skipped": history.skipped, "model": None if error is None else asdict(error)}


def history_sentences(history: VerificationHistory) -> list[str]:
    """Return sentences on the model's error, and on damaged lines."""
    sentences = [_error_sentence(model_error(history.entries))]
    if history.skipped:
        lines = "line was" if history.skipped == 1 else "lines were"
        sentences.append(f"{history.skipped} damaged {lines} skipped.")
    return sentences


def _error_sentence(error: ModelError | None) -> str:
    if error is None:
        return "The history contains no verification with a prediction yet."
    return (
        f"{format_count(error.count, 'prediction')}: the median error of the predicted rate is {error.median:.0%}, "
        f"{error.within:.0%} are within {GOOD_ERROR:.0%}."
    )


def _trial_row(trial: Trial) -> tuple[str, ...]:
    return (
        f"{trial.run.settings} {trial.run.number}",
        format_number(trial.rate),
        f"{trial.wait_share:.0%}",
        str(len(trial.measure.numerator)),
        str(trial.measure.workers),
        "cold" if trial.cold else "warm",
    )


def _entry_row(entry: VerificationEntry) -> tuple[str, ...]:
    span = ""
    if entry.low is not None and entry.high is not None:
        span = f" ({entry.low - 1:+.0%} to {entry.high - 1:+.0%})"
    return (
        time.strftime("%Y-%m-%d", time.localtime(entry.at_unix_s)),
        entry.plan[:6],
        "–" if entry.predicted_gain is None else f"{entry.predicted_gain:+.0%}",
        f"{entry.gain:+.0%}{span}",
        "–" if entry.error is None else f"{entry.error:+.0%}",
        f"{entry.answer}{', cold' if entry.cold else ''}",
    )


def _texts(lines: Iterable[str]) -> list[Text]:
    return [Text(printable(line)) for line in lines if line]
