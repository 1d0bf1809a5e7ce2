"""A few of the real faults of `make bench-faults`, in short runs: the expected rule is among the findings.

Tests run at the same time as others on few cores, so there may rightly be a finding about another program too. The
benchmark, on an idle machine, also requires that the expected rule comes first.
"""

import pytest
from benchmarks.faults.trials import WITH_FAULT, record_of, recorded_outcome, run_in_child
from tests.support.faults import FAULTS, Case

from penstock.diagnose.verdict import diagnose
from penstock.recording.reader import load

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("name", ["slow_worker", "slow_samples", "one_lock", "short_epochs"])
def test_a_real_fault_is_found(name, tmp_path):
    case = Case(folder=tmp_path, steps=80)
    outcome = run_in_child(FAULTS[name], case, run_number=WITH_FAULT)
    found = {finding.rule: finding for finding in diagnose(load(record_of(FAULTS[name], case))).findings}
    assert FAULTS[name].expect in found
    assert found[FAULTS[name].expect].gain > 0.2
    assert recorded_outcome(FAULTS[name], case, run_number=WITH_FAULT).steps_per_s == pytest.approx(
        outcome.steps_per_s, rel=0.05
    )


def test_workers_that_start_threads_run_to_their_end(tmp_path):
    outcome = run_in_child(FAULTS["threads_in_workers"], Case(folder=tmp_path, steps=4), run_number=WITH_FAULT)
    assert outcome.steps == 4
