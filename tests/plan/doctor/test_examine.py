"""All checks together."""

import subprocess
import sys

from penstock.plan.doctor import examine as examine_module
from penstock.plan.doctor.check import NOT_KNOWN, Check, CheckStatus, unknown_check
from penstock.plan.doctor.examine import DoctorReport, examine


def test_all_checks_run_on_this_machine():
    names = [check.name for check in examine().machine]
    for name in ("cores", "memory", "/dev/shm", "swap", "open files", "NUMA nodes", "start method", "python", "torch"):
        assert name in names
    assert any(name.startswith("GPU") for name in names)
    assert all(check.value and check.meaning.endswith(".") for check in examine().machine)


def test_torch_is_not_imported():
    code = "import sys; from penstock.plan.doctor.examine import examine; examine(); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_script_is_judged_against_this_machine(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("DataLoader(ds, num_workers=4096)\n")
    script = examine(file).script
    assert (script[0].name, script[0].mark) == ("line 1 num_workers", CheckStatus.BAD)


def test_checks_that_fail_become_rows(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("not for you")

    for name in ("machine_facts", "core_checks", "memory_checks", "limit_checks", "gpu_checks", "version_checks"):
        monkeypatch.setattr(examine_module, name, refuse)
    found = examine()
    assert [check.value for check in found.machine] == [NOT_KNOWN] * 5
    assert "PermissionError: not for you" in found.machine[0].meaning
    assert found.ok


def test_report_is_not_ok_if_one_row_needs_action():
    good = Check("a", "1", "Fine.")
    assert DoctorReport((good, unknown_check("b", "Hidden."))).ok
    assert not DoctorReport((good, Check("c", "2", "Slow.", CheckStatus.ATTENTION))).ok
    assert not DoctorReport((good,), (Check("c", "2", "Broken.", CheckStatus.BAD),)).ok
