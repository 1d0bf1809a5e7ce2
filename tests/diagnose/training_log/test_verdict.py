"""The diagnosis of a log: what it states, and what it leaves open."""

import math
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.paths import DATA_FILES

from penstock.diagnose.training_log.parsed_log import ProgressBar, SlowBatch, StepMeter, TrainingLog
from penstock.diagnose.training_log.read import read_log
from penstock.diagnose.training_log.verdict import diagnose_log
from penstock.errors import RecordingError, SettingError


def every(period, *, count=12, lost_s=2.0, period_s=4.0, start=100):
    """Return slow batches with a period, and with timestamps."""
    return tuple(
        SlowBatch(number=start + period * index, seconds=lost_s, at_s=period_s * index) for index in range(count)
    )


def means(*waits_s, compute_s=0.3, interval=50):
    """Return a line of mean times for each wait."""
    return tuple(
        StepMeter(epoch=1, step=interval * (index + 1), time_s=compute_s + wait, wait_s=wait)
        for index, wait in enumerate(waits_s)
    )


class TestLogOf32Workers:
    """The log of a real training with 32 workers, with its lines unchanged: they are not in the order of time."""

    @pytest.fixture
    def log(self):
        return read_log(DATA_FILES / "slow_batches.log")

    @pytest.fixture
    def diagnosis(self, log):
        return diagnose_log(log)

    def test_the_period_of_a_steady_shortfall_is_num_workers(self, diagnosis):
        assert diagnosis.verdict == "undetermined"
        assert diagnosis.sentence.startswith("A steady supply shortfall with period 32 = num_workers")

    def test_the_rate_is_measured_over_whole_periods(self, diagnosis):
        # 352 batches from 19:26:27.537 to 19:31:07.476
        assert "1.26 batches/s (30.2 samples/s at batch 24)" in diagnosis.sentence
        assert any("50 is no multiple of 32" in note for note in diagnosis.notes)

    def test_the_lost_share_of_the_time_is_reported(self, diagnosis):
        assert diagnosis.impact.share == pytest.approx(215.77 / 279.939)
        assert diagnosis.impact.per_epoch_s == pytest.approx(4570 * 215.77 / 352)
        assert "77% of the time lost" in diagnosis.sentence

    def test_a_larger_prefetch_factor_cannot_help(self, diagnosis):
        why = next(rejected.why for rejected in diagnosis.rejected if rejected.rule == "prefetch_factor")
        assert "a larger prefetch factor cannot help" in why
        assert "32 / 25.4 s" in why
        assert "384 tasks outstanding" in why

    def test_three_causes_have_equal_confidence(self, diagnosis):
        assert {finding.rule for finding in diagnosis.findings} == {
            "storage_bandwidth",
            "decode_bound",
            "lagging_worker",
        }
        assert all(finding.confidence == pytest.approx(1 / 3) for finding in diagnosis.findings)
        assert all(finding.gain_low < finding.gain < finding.gain_high for finding in diagnosis.findings)
        assert diagnosis.findings[0].gain == pytest.approx(279.939 / (279.939 - 215.77) - 1, rel=1e-3)

    def test_the_deciding_experiment_is_named(self, diagnosis):
        for word in ("penstock run", "ready", "awaited", "16 instead of 32", "in_order=False"):
            assert word in diagnosis.experiment

    def test_labels_of_the_logs_author_are_not_evidence(self, diagnosis):
        note = next(note for note in diagnosis.notes if "not taken as evidence" in note)
        assert "prefetch_buffer_exhausted" in note
        assert "very_slow_io" in note

    def test_the_step_time_and_the_clock_of_the_bar_are_reported(self, diagnosis):
        notes = " ".join(diagnosis.notes)
        assert "a step takes 161 ms by itself" in notes
        assert "the first 2950 of 4570 steps took 34.2 min, 697 ms each" in notes

    def test_without_num_workers_the_period_suggests_it(self, log):
        sentence = diagnose_log(replace(log, workers=())).sentence
        assert "period 32, which suggests 32 workers" in sentence

    def test_values_from_the_user_override_the_log(self, log):
        diagnosis = diagnose_log(log, workers=8, batch_size=1)
        assert "every 32 batches = 4 × num_workers" in diagnosis.sentence
        assert "1.26 samples/s at batch 1" in diagnosis.sentence
        assert diagnosis.findings == ()


def test_the_common_worker_of_all_slow_batches_is_evidence_for_lagging_worker_only():
    diagnosis = diagnose_log(read_log(DATA_FILES / "slow_batches.log"))
    named = [finding.rule for finding in diagnosis.findings if any("worker 6's" in fact for fact in finding.evidence)]
    assert named == ["lagging_worker"]


def test_a_multiple_of_num_workers_is_reported_as_a_multiple():
    assert "= 2 × num_workers" in diagnose_log(TrainingLog(slow=every(32), workers=(8, 16))).sentence


def test_of_several_values_of_num_workers_the_period_is_used():
    diagnosis = diagnose_log(TrainingLog(slow=every(8), workers=(32, 8)))
    assert "period 8 = num_workers" in diagnosis.sentence
    assert any("more than one num_workers (32, 8)" in note for note in diagnosis.notes)


def test_a_period_unrelated_to_num_workers_has_no_candidates():
    diagnosis = diagnose_log(TrainingLog(slow=every(100)), workers=32)
    assert "every 100 batches, which is not num_workers (32)" in diagnosis.sentence
    assert (diagnosis.verdict, diagnosis.findings) == ("undetermined", ())


def test_random_slow_batches_have_no_period_and_no_candidates():
    rng = random.Random(4)
    numbers = sorted(rng.sample(range(3000), 40))
    slow = tuple(SlowBatch(number=n, seconds=3.0, at_s=n * 0.2 + 3.0 * i) for i, n in enumerate(numbers))
    diagnosis = diagnose_log(TrainingLog(slow=slow), workers=32)
    assert "without a period" in diagnosis.sentence
    assert diagnosis.findings == ()


def test_slow_batches_that_cost_little_are_healthy():
    diagnosis = diagnose_log(TrainingLog(slow=every(32, lost_s=0.1, period_s=10.0)), workers=32)
    assert diagnosis.verdict == "healthy"
    assert "1.0% of the time" in diagnosis.sentence


def test_a_shortfall_that_gets_worse_is_called_growing():
    slow, now = [], 0.0
    for index in range(24):
        lost = 2.0 if index < 12 else 6.0
        now += 2.0 + lost
        slow.append(SlowBatch(number=8 * index, seconds=lost, at_s=now))
    diagnosis = diagnose_log(TrainingLog(slow=tuple(slow)), workers=8)
    assert diagnosis.sentence.startswith("A growing supply shortfall")
    assert any("from 500 ms to 1 s, from batch #96 on" in note for note in diagnosis.notes)


def test_waits_for_other_batches_make_a_lagging_worker_less_likely():
    bars = (ProgressBar(done=500, total=1000, elapsed_s=500, wait_s=0.5, phases=(("bwd", 0.1),)),)
    diagnosis = diagnose_log(TrainingLog(slow=every(8, lost_s=2.0, period_s=4.0), bars=bars), workers=8)
    confidence = {finding.rule: finding.confidence for finding in diagnosis.findings}
    assert confidence["lagging_worker"] < confidence["storage_bandwidth"] == confidence["decode_bound"]


def test_without_timestamps_there_is_no_rate_and_no_gain():
    slow = tuple(replace(batch, at_s=None) for batch in every(8))
    diagnosis = diagnose_log(TrainingLog(slow=slow), workers=8)
    assert (
        "period 8 = num_workers: 22 s lost in 11 slow batches, at a rate that the log does not say"
        in diagnosis.sentence
    )
    assert (diagnosis.findings, diagnosis.impact) == ((), None)


def test_a_timm_log_with_little_data_time_is_healthy():
    diagnosis = diagnose_log(read_log(DATA_FILES / "timm_healthy.log"))
    assert (diagnosis.verdict, diagnosis.findings) == ("healthy", ())
    assert diagnosis.impact.share == pytest.approx(0.028, abs=0.001)
    assert any("first batch of an epoch is waited for 2.4 s" in note for note in diagnosis.notes)


def test_a_rise_of_the_data_time_in_a_timm_log_is_located():
    diagnosis = diagnose_log(read_log(DATA_FILES / "timm_waiting.log"))
    assert diagnosis.verdict == "undetermined"
    assert diagnosis.impact.share == pytest.approx(0.196, abs=0.001)
    assert any("data time per step went from 4.76 ms to 250 ms, from step 450 on" in note for note in diagnosis.notes)
    assert "4 instead of 8" in diagnosis.experiment


def test_an_mmengine_log_gives_the_share_but_no_cause():
    diagnosis = diagnose_log(read_log(DATA_FILES / "mmengine_waiting.log"))
    assert diagnosis.verdict == "undetermined"
    assert diagnosis.sentence.startswith("38% of the time is waited for data (191 ms of the 501 ms")
    assert diagnosis.findings[0].gain == pytest.approx(0.617, abs=0.01)


def test_without_workers_the_cause_is_no_overlap():
    diagnosis = diagnose_log(TrainingLog(meters=means(*[0.2] * 10)), workers=0)
    assert (diagnosis.verdict, [finding.rule for finding in diagnosis.findings]) == ("findings", ["no_overlap"])
    assert diagnosis.findings[0].gain == pytest.approx(0.5 / 0.3 - 1)


def test_spikes_of_data_time_are_counted():
    diagnosis = diagnose_log(TrainingLog(meters=means(*[0.01] * 9, 3.0)))
    assert any("1 of 10 lines show a spike of the data time, the longest 3 s at step 500" in n for n in diagnosis.notes)


def test_time_outside_the_steps_is_reported():
    meters = tuple(replace(meter, at_s=100.0 * index) for index, meter in enumerate(means(*[0.2] * 10)))
    assert any("add up to 225 s of the 15 min" in note for note in diagnose_log(TrainingLog(meters=meters)).notes)


def test_data_times_longer_than_step_times_give_no_share():
    meters = tuple(StepMeter(step=50 * index, time_s=0.1, wait_s=0.3) for index in range(1, 9))
    diagnosis = diagnose_log(TrainingLog(meters=meters))
    assert (diagnosis.verdict, diagnosis.impact) == ("undetermined", None)
    assert "do not include the wait" in diagnosis.sentence


@pytest.mark.parametrize(
    ("name", "rate"), [("lightning.log", "4.82 batches/s"), ("hf_trainer.log", "63.7 samples/s, 1.99 steps/s")]
)
def test_logs_without_data_times_are_undetermined_with_an_experiment(name, rate):
    diagnosis = diagnose_log(read_log(DATA_FILES / name))
    assert (diagnosis.verdict, diagnosis.findings) == ("undetermined", ())
    assert rate in diagnosis.sentence
    assert "penstock run" in diagnosis.experiment


def test_the_number_of_recognised_lines_is_reported():
    notes = diagnose_log(read_log(DATA_FILES / "slow_batches.log")).notes
    assert "19 of the log's 28 lines were recognised: 17 of slow batches, 2 of tqdm" in notes


def test_control_characters_in_a_log_do_not_reach_the_terminal():
    slow = tuple(replace(batch, label="\x1b[2J\x07bad") for batch in every(8))
    bars = (ProgressBar(done=5, total=10, elapsed_s=5, wait_s=0.5, phases=(("b\x1b[2J", 0.1),)),)
    diagnosis = diagnose_log(TrainingLog(slow=slow, bars=bars), workers=8)
    assert any("bad" in note for note in diagnosis.notes)
    assert all(text.isprintable() for text in (diagnosis.sentence, *diagnosis.notes))


@pytest.mark.parametrize(
    "log", [TrainingLog(slow=every(8, count=1)), TrainingLog(meters=(StepMeter(step=0, time_s=0, wait_s=0),))]
)
def test_one_line_or_zero_times_are_undetermined(log):
    assert diagnose_log(log).verdict == "undetermined"


@pytest.mark.parametrize("flags", [{"workers": -1}, {"batch_size": 0}])
def test_impossible_settings_are_refused(flags):
    with pytest.raises(SettingError):
        diagnose_log(TrainingLog(slow=every(8)), **flags)


NUMBERS = st.one_of(
    st.integers(-3, 10**6).map(str),
    st.floats().map(str),
    st.sampled_from(["0", "0.0", "1e400", "9" * 5000, "nan", "1,234", ".", ""]),
)
TEMPLATES = (
    "[SLOW BATCH #{}] {}s - why",
    "2025-11-15 19:26:{},537 [SLOW BATCH #{}] {}s - why",
    "[DATA LOAD] Recent {} batches: avg={}ms, min=0ms, max={}ms, std=1ms",
    "9%|x| {}/{} [00:0{}<00:10, 1.0it/s, data={}, bwd={}]",
    "Train: {} [{}/{}] Time: {}s, {}/s ({}s, 1/s) Data: {} ({})",
    "Epoch(train) [{}][{}/{}] time: {} data_time: {}",
    "{{'loss': {}, 'epoch': {}}}",
    "{{'train_runtime': {}, 'train_samples_per_second': {}, 'epoch': 1}}",
    "num_workers={} batch_size={} prefetch_factor={}",
)
LINES = st.builds(
    lambda template, numbers: template.format(*numbers),
    st.sampled_from(TEMPLATES),
    st.lists(NUMBERS, min_size=8, max_size=8),
)


@settings(max_examples=150)
@given(st.lists(st.one_of(LINES, st.text(max_size=40)), max_size=40))
def test_any_log_gets_a_diagnosis_or_a_reason(lines):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.log")
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        try:
            diagnosis = diagnose_log(read_log(path))
        except RecordingError:
            return  # no line was recognised: see test_read.py
    assert diagnosis.sentence
    assert "nan" not in diagnosis.sentence
    assert all(math.isfinite(finding.gain) for finding in diagnosis.findings)
    assert diagnosis.verdict == "findings" or diagnosis.verdict == "healthy" or diagnosis.experiment
