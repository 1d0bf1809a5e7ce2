import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from penstock.report.verify import (
    answer_sentence,
    history_document,
    history_sentences,
    history_text,
    prediction_sentence,
    verification_document,
    verification_text,
)
from penstock.verify.history import VerificationEntry, VerificationHistory
from penstock.verify.judge import Judgement
from penstock.verify.measures import RunMeasure
from penstock.verify.trials import ScheduledRun, Trial

BETTER = Judgement(
    answer="better", before_samples_s=100.0, after_samples_s=140.0, low=1.3, high=1.5, predicted_gain=0.54
)


def trial(settings="before", number=1, **fields):
    side = RunMeasure(np.full(90, 8.0), np.full(90, 0.08), 2)
    return Trial(
        **{"run": ScheduledRun(settings, number), "measure": side, "wait_share": 0.25, "cold": False, **fields}
    )


def shown(thing):
    page = io.StringIO()
    Console(width=80, file=page).print(thing)
    return page.getvalue()


def test_the_answer_comes_with_its_interval():
    assert answer_sentence(BETTER) == "Better: 100 → 140, +40% (95%: +30% to +50%)."
    worse = replace(BETTER, answer="worse", after_samples_s=80.0, low=0.7, high=0.9)
    assert answer_sentence(worse) == "Worse: 100 → 80, -20% (95%: -30% to -10%)."
    assert "may be chance" in answer_sentence(replace(BETTER, answer="inconclusive", low=0.9))
    assert "too short a time" in answer_sentence(replace(BETTER, answer="inconclusive", low=None, high=None))


@pytest.mark.parametrize(
    ("predicted", "words"),
    [
        (
            0.54,
            "Predicted +54%, measured +40%, outside the interval: the predicted rate is 10% above the measured one.",
        ),
        (0.33, "Predicted +33%, measured +40%, within the interval: the predicted rate is 5% below the measured one."),
        (None, ""),
    ],
)
def test_the_prediction_is_compared_with_the_measurement(predicted, words):
    assert prediction_sentence(replace(BETTER, predicted_gain=predicted)) == words


def test_the_text_has_answer_runs_and_each_note_once():
    notes = ("Not cold: no permission.",)
    text = shown(verification_text(BETTER, [trial(notes=notes), trial("after", notes=notes)], ["The plan …"]))
    assert text.startswith("Better: ")
    assert "before 1" in text
    assert "after 1" in text
    assert text.count("Not cold") == 1
    assert "The plan …" in text


def test_rates_in_batches_are_labelled_so():
    text = shown(verification_text(BETTER, [trial(unit="batches/s")]))
    assert "batches/s" in text
    assert "samples/s" not in text


def test_control_characters_in_names_are_escaped():
    text = shown(verification_text(BETTER, [trial(notes=("\x1b[31m[bold]x[/bold]",))]))
    assert "\\x1b[31m[bold]x[/bold]" in text


def test_the_json_has_the_same_content():
    document = json.loads(
        json.dumps(verification_document(BETTER, [trial(cold=True), trial("after")]), allow_nan=False)
    )
    assert (document["answer"], document["ratio"], document["cold"]) == ("better", 1.4, False)
    assert document["model_error"] == pytest.approx(0.1)
    assert [run["settings"] for run in document["runs"]] == ["before", "after"]
    assert document["runs"][0]["rate"] == pytest.approx(100.0)


def entry(gain, predicted_gain):
    return VerificationEntry(
        at_unix_s=1.7e9, plan="0123456789", answer="better", before_samples_s=100.0, after_samples_s=100.0 * (1 + gain),
        gain=gain, predicted_gain=predicted_gain, low=1.1, high=1.3, cold=True,
    )  # fmt: skip


def test_the_history_ends_with_the_error_of_the_model():
    history = VerificationHistory((entry(0.2, 0.2), entry(0.0, 0.1), entry(0.0, 1.0)), skipped=2)
    assert history_sentences(history) == [
        "3 predictions: the median error of the predicted rate is 10%, 67% are within 15%.",
        "2 damaged lines were skipped.",
    ]
    text = shown(history_text(history))
    assert "012345" in text
    assert "better, cold" in text
    document = json.loads(json.dumps(history_document(history)))
    assert document["model"]["median"] == pytest.approx(0.1)
    assert (len(document["entries"]), document["skipped"]) == (3, 2)


def test_an_empty_history_is_reported():
    assert history_sentences(VerificationHistory(())) == ["The history contains no verification with a prediction yet."]
    assert history_document(VerificationHistory(()))["model"] is None
