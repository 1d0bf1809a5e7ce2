"""What a plan says of a loader that waits for an object store."""

import pytest
from tests.support.made_store import MadeStore

from penstock.diagnose.verdict import diagnose_run
from penstock.plan.from_diagnosis import plan_from_diagnosis


def changes(made):
    return {
        (change.scope, change.name): change for change in plan_from_diagnosis(diagnose_run(made.recording())).changes
    }


def test_latency_asks_for_requests_in_flight():
    plan = plan_from_diagnosis(diagnose_run(MadeStore(answer_s=0.03, body_s=0.005).recording()))
    assert plan.loader == {"reading": {"num_readers": 40}}
    (change,) = plan.changes
    assert (change.scope, change.now, change.gain) == ("loader", 16, pytest.approx(1.5, rel=0.01))
    assert "30 ms for its answer" in change.reason


def test_bandwidth_asks_for_a_cache_and_for_fewer_bytes():
    found = changes(MadeStore(answer_s=0.01, body_s=0.6))
    assert set(found) == {("data", "cache"), ("data", "bytes")}
    assert found["data", "cache"].gain == pytest.approx(1.5, rel=0.01)
    assert "on that disk" in found["data", "cache"].cost
    assert found["data", "bytes"].gain is None  # nobody knows how much smaller samples could be


def test_epochs_that_read_again_ask_for_a_cache_whatever_the_bound():
    assert ("data", "cache") in changes(MadeStore(passes=2, answer_s=0.03, body_s=0.005))


def test_nothing_is_asked_for_where_the_store_keeps_up():
    assert changes(MadeStore(wait_s=0.001)) == {}
