"""A penstock.Loader over an object store: latency, bandwidth, or neither, and only where the recording carries it."""

import msgspec
import pytest
from tests.support.made_store import MadeStore

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


def found(made):
    return [finding.rule for finding in diagnose(made.recording()).findings]


def test_answers_that_come_late_are_latency():
    diagnosis = diagnose(MadeStore(answer_s=0.03, body_s=0.005).recording())
    finding = diagnosis.findings[0]
    assert finding.rule == "latency_bound"
    assert "num_readers=40" in finding.advice  # 16 of them, and the loop could go 2.5 times as fast
    assert finding.gain == pytest.approx(1.5, rel=0.01)
    assert any("30 ms until its answer begins" in fact for fact in finding.evidence)
    assert {each.rule for each in diagnosis.rejected} >= {"storage_bandwidth"}


def test_bytes_that_are_long_in_coming_are_bandwidth():
    diagnosis = diagnose(MadeStore(answer_s=0.01, body_s=0.6).recording())
    assert diagnosis.findings[0].rule == "storage_bandwidth"
    assert "cache" in diagnosis.findings[0].advice
    assert {each.rule for each in diagnosis.rejected} >= {"latency_bound"}


def test_what_the_loader_tried_decides_between_them():
    even = {"answer_s": 0.03, "body_s": 0.04}
    assert found(MadeStore(**even)) == []
    assert found(MadeStore(**even, changes=HELPED)) == ["latency_bound"]
    assert found(MadeStore(**even, changes=NO_HELP)) == ["storage_bandwidth"]
    assert found(MadeStore(answer_s=0.09, body_s=0.01, changes=NO_HELP)) == []  # late, and yet more is no help


def test_what_nothing_decides_is_undetermined_with_an_experiment():
    diagnosis = diagnose(MadeStore(answer_s=0.03, body_s=0.04).recording())
    assert diagnosis.verdict == "undetermined"
    assert "num_readers=32" in diagnosis.experiment


def test_epochs_that_read_from_the_store_again_ask_for_a_cache():
    assert "cache_miss" in found(MadeStore(passes=2))
    assert "cache_miss" not in found(MadeStore(passes=1))
    assert "cache_miss" not in found(MadeStore(passes=2, from_store_again=0.3))


@pytest.mark.parametrize(
    "otherwise",
    [
        {"type": "torch"},
        {"wait_s": 0.002},  # the loop does not wait
        {"read_busy": 0.5},  # readers do not
        {"decode_starved": 0.02, "decode_busy": 0.95},  # workers do not
        {"from_store": 0.2},  # most of it comes from somewhere else
        {"from_store": 3.0},  # somebody else reads there
    ],
)
def test_nothing_is_said_of_a_store_that_is_not_the_matter(otherwise):
    (evidence,) = gather(MadeStore(**otherwise).recording())
    assert store_reads(evidence) is None


def test_sums_that_start_anew_do_not_count():
    recording = MadeStore().recording()
    first, *rest = recording.hops
    again = [line for line in rest if line.at_s <= 5]
    (whole,) = gather(recording)
    later = [msgspec.structs.replace(line, at_s=line.at_s + 5) for line in again]
    cut = msgspec.structs.replace(first, at_s=5.5)
    (broken,) = gather(type(recording)(**{**_fields(recording), "hops": (first, *again, cut, *later)}))
    assert store_reads(broken).answer_s == pytest.approx(store_reads(whole).answer_s)
    assert store_reads(broken).bytes_s == pytest.approx(store_reads(whole).bytes_s, rel=0.3)


def _fields(recording):
    return {name: getattr(recording, name) for name in recording.__dataclass_fields__}


def window(mb_per_s):
    read, decode = Hop("read", 0.95, 0.05, 0.0), Hop("decode", 0.3, 0.7, 0.0)
    return TuningWindow(1.0, 0.5, int(mb_per_s * 1e6), read, decode, 0.3, 10, 100)


@pytest.mark.parametrize(("rates", "helped"), [((50, 100, 100, 190), True), ((50, 50, 30, 50), False), ((), None)])
def test_the_words_of_the_loader_are_understood(rates, helped):
    """As its controller says them."""
    policy, changes = AutotunePolicy(), []
    knobs = Knobs(Knob(8, 1, 32), Knob(4, 4, 4), Knob(4, 4, 4), 0.01)
    for rate in rates:
        change = policy.decide(window(rate), knobs)
        if change is not None:
            knobs = knobs.changed(change)
            changes.append(str(change))
    assert more_readers_helped(changes) is helped
