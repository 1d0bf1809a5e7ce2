"""Changes that a plan proposes to a penstock.Loader that waits for an object store."""

import pytest
from tests.support.store_recordings import StoreRun

from penstock.diagnose.verdict import diagnose_run
from penstock.plan.from_diagnosis import plan_from_diagnosis


def changes(run):
    plan = plan_from_diagnosis(diagnose_run(run.recording()))
    return {(change.scope, change.name): change for change in plan.changes}


def test_latency_leads_to_more_reads_in_flight():
    plan = plan_from_diagnosis(diagnose_run(StoreRun(answer_s=0.03, body_s=0.005).recording()))
    assert plan.loader == {"reading": {"num_readers": 40}}
    (change,) = plan.changes
    assert (change.scope, change.now, change.gain) == ("loader", 16, pytest.approx(1.5, rel=0.01))
    assert "30 ms for its answer" in change.reason


def test_low_bandwidth_leads_to_a_cache_and_to_fewer_bytes():
    found = changes(StoreRun(answer_s=0.01, body_s=0.6))
    assert set(found) == {("data", "cache"), ("data", "bytes")}
    assert found["data", "cache"].gain == pytest.approx(1.5, rel=0.01)
    assert "on that disk" in found["data", "cache"].cost
    assert found["data", "bytes"].gain is None  # how much smaller the samples could be is not known


def test_a_second_epoch_that_reads_from_the_store_again_leads_to_a_cache():
    assert ("data", "cache") in changes(StoreRun(epochs=2, answer_s=0.03, body_s=0.005))


def test_a_store_that_keeps_up_gets_no_changes():
    assert changes(StoreRun(wait_s=0.001)) == {}
