"""A few of the fault bench's real faults, in short: the cause is among the findings.

Tests run beside others on few cores, so a neighbour may be found too, and rightly; what comes first is judged by
`make bench-faults` on a quiet machine.
"""

import pytest
from benchmarks.faults.trials import record_of, recorded, run_in_child
from tests.support.faults import FAULTS, Case

from penstock.diagnose.verdict import diagnose
from penstock.recording.reader import load

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("name", ["slow_worker", "slow_samples", "one_lock", "short_epochs"])
def test_a_real_fault_is_found(name, tmp_path):
    case = Case(folder=tmp_path, steps=80)
    outcome = run_in_child(FAULTS[name], case, twin=0)
    found = {finding.rule: finding for finding in diagnose(load(record_of(FAULTS[name], case))).findings}
    assert FAULTS[name].expect in found
    assert found[FAULTS[name].expect].gain > 0.2
    assert recorded(FAULTS[name], case, twin=0).steps_per_s == pytest.approx(outcome.steps_per_s, rel=0.05)


def test_workers_that_start_threads_run_to_their_end(tmp_path):
    outcome = run_in_child(FAULTS["threads_in_workers"], Case(folder=tmp_path, steps=4), twin=0)
    assert outcome.steps == 4
