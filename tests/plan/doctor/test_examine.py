import subprocess
import sys

from penstock.plan.doctor import examine as room
from penstock.plan.doctor.check import NOT_KNOWN, Check, CheckStatus, not_known
from penstock.plan.doctor.examine import DoctorReport, examine


def test_this_machine_is_looked_at_all_over():
    names = [check.name for check in examine().machine]
    for name in ("cores", "memory", "/dev/shm", "swap", "open files", "NUMA nodes", "start method", "python", "torch"):
        assert name in names
    assert any(name.startswith("GPU") for name in names)
    assert all(check.value and check.meaning.endswith(".") for check in examine().machine)


def test_torch_is_not_imported_for_it():
    code = "import sys; from penstock.plan.doctor.examine import examine; examine(); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_a_script_is_judged_against_this_machine(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("DataLoader(ds, num_workers=4096)\n")
    script = examine(file).script
    assert (script[0].name, script[0].mark) == ("line 1 num_workers", CheckStatus.BAD)


def test_a_machine_that_refuses_every_question_is_still_described(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("not for you")

    for name in ("machine_facts", "core_checks", "memory_checks", "limit_checks", "gpu_checks", "version_checks"):
        monkeypatch.setattr(room, name, refuse)
    found = examine()
    assert [check.value for check in found.machine] == [NOT_KNOWN] * 5
    assert "PermissionError: not for you" in found.machine[0].meaning
    assert found.ok


def test_one_row_to_act_on_is_enough():
    good = Check("a", "1", "Fine.")
    assert DoctorReport((good, not_known("b", "Hidden."))).ok
    assert not DoctorReport((good, Check("c", "2", "Slow.", CheckStatus.LOOK))).ok
    assert not DoctorReport((good,), (Check("c", "2", "Broken.", CheckStatus.BAD),)).ok
