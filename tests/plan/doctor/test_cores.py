from penstock.plan.doctor.check import CheckStatus
from penstock.plan.doctor.machine import core_checks
from penstock.recording.format import Machine


def look(**facts):
    (check,) = core_checks(Machine(**facts))
    return check


def test_all_cores_for_us_is_good():
    check = look(cores=16, usable_cores=16)
    assert (check.value, check.mark) == ("16 of 16", CheckStatus.GOOD)
    assert "16 workers" in check.meaning


def test_an_affinity_mask_is_a_trap_for_cpu_count():
    check = look(cores=64, usable_cores=8)
    assert (check.value, check.mark) == ("8 of 64", CheckStatus.LOOK)
    assert "os.cpu_count() still says 64" in check.meaning


def test_a_quota_is_said_with_its_fraction():
    check = look(cores=64, usable_cores=2, quota_cores=1.5)
    assert (check.value, check.mark) == ("2 of 64 (quota 1.5)", CheckStatus.LOOK)
    assert "1.5 cores' worth of time" in check.meaning


def test_a_quota_beyond_the_machine_limits_nothing():
    assert look(cores=4, usable_cores=4, quota_cores=8.0).mark is CheckStatus.GOOD


def test_one_core_is_shared_with_the_training():
    assert look(cores=1, usable_cores=1).mark is CheckStatus.LOOK
