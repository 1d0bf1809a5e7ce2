"""The diagnosis of a penstock.Loader that reads from an object store: latency, bandwidth, or undetermined."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.store_recordings import StoreRun

from penstock.core.hops import Hop
from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.evidence.store_reads import more_readers_helped, store_reads
from penstock.diagnose.verdict import diagnose
from penstock.engine.autotune import AutotunePolicy, Knob, Knobs, TuningWindow

NO_HELP = (
    "readers 16 → 32: workers starved 60% of the time with every read in flight; trying for more than 50 MB/s",
    "readers 32 → 8: 50 MB/s after 50: trying fewer",
    "readers 8 → 16: 30 MB/s after 50: fewer are too few",
)
HELPED = NO_HELP[:1]


def found_rules(run):
    return [finding.rule for finding in diagnose(run.recording()).findings]


def test_requests_with_late_answers_are_latency_bound():
    diagnosis = diagnose(StoreRun(answer_s=0.03, body_s=0.005).recording())
    finding = diagnosis.findings[0]
    assert finding.rule == "latency_bound"
    assert "num_readers=40" in finding.advice  # 16 readers, and the loop could be 2.5 times as fast
    assert finding.gain == pytest.approx(1.5, rel=0.01)
    assert any("30 ms until its answer begins" in fact for fact in finding.evidence)
    assert {cause.rule for cause in diagnosis.rejected} >= {"storage_bandwidth"}


def test_requests_with_slow_bodies_are_bandwidth_bound():
    diagnosis = diagnose(StoreRun(answer_s=0.01, body_s=0.6).recording())
    assert diagnosis.findings[0].rule == "storage_bandwidth"
    assert "cache" in diagnosis.findings[0].advice
    assert {cause.rule for cause in diagnosis.rejected} >= {"latency_bound"}


def test_the_effect_of_more_readers_decides_between_latency_and_bandwidth():
    even = {"answer_s": 0.03, "body_s": 0.04}
    assert found_rules(StoreRun(**even)) == []
    assert found_rules(StoreRun(**even, changes=HELPED)) == ["latency_bound"]
    assert found_rules(StoreRun(**even, changes=NO_HELP)) == ["storage_bandwidth"]
    assert (
        found_rules(StoreRun(answer_s=0.09, body_s=0.01, changes=NO_HELP)) == []
    )  # answers are late, yet more readers did not help


def test_an_undecided_cause_is_undetermined_with_an_experiment():
    diagnosis = diagnose(StoreRun(answer_s=0.03, body_s=0.04).recording())
    assert diagnosis.verdict == "undetermined"
    assert "num_readers=32" in diagnosis.experiment


def test_reading_from_the_store_again_in_later_epochs_is_a_cache_miss():
    assert "cache_miss" in found_rules(StoreRun(epochs=2))
    assert "cache_miss" not in found_rules(StoreRun(epochs=1))
    assert "cache_miss" not in found_rules(StoreRun(epochs=2, from_store_again=0.3))


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "torch"},
        {"wait_s": 0.002},  # the loop does not wait
        {"read_busy": 0.5},  # the readers are idle half of the time
        {"decode_starved": 0.02, "decode_busy": 0.95},  # the workers do not wait for bytes
        {"from_store": 0.2},  # most bytes come from a cache
        {"from_store": 3.0},  # other loaders read from the store too
    ],
)
def test_a_store_that_does_not_limit_the_loader_is_not_described(properties):
    (evidence,) = gather(StoreRun(**properties).recording())
    assert store_reads(evidence) is None


def test_an_interval_in_which_the_sums_restart_is_left_out():
    recording = StoreRun().recording()
    zero, *lines = recording.hops
    until_restart = [line for line in lines if line.at_s <= 5]
    restart = msgspec.structs.replace(zero, at_s=5.5)
    since_restart = [msgspec.structs.replace(line, at_s=line.at_s + 5) for line in until_restart]
    (whole,) = gather(recording)
    (restarted,) = gather(replace(recording, hops=(zero, *until_restart, restart, *since_restart)))
    assert store_reads(restarted).answer_s == pytest.approx(store_reads(whole).answer_s)
    assert store_reads(restarted).bytes_s == pytest.approx(store_reads(whole).bytes_s, rel=0.3)


def window(mb_per_s):
    read, decode = Hop("read", 0.95, 0.05, 0.0), Hop("decode", 0.3, 0.7, 0.0)
    return TuningWindow(1.0, 0.5, int(mb_per_s * 1e6), read, decode, 0.3, 10, 100)


@pytest.mark.parametrize(("rates", "helped"), [((50, 100, 100, 190), True), ((50, 50, 30, 50), False), ((), None)])
def test_the_changes_that_the_autotuner_records_can_be_read(rates, helped):
    policy, changes = AutotunePolicy(), []
    knobs = Knobs(Knob(8, 1, 32), Knob(4, 4, 4), Knob(4, 4, 4), 0.01)
    for rate in rates:
        change = policy.decide(window(rate), knobs)
        if change is not None:
            knobs = knobs.changed(change)
            changes.append(str(change))
    assert more_readers_helped(changes) is helped
