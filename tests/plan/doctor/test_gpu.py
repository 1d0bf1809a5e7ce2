from types import SimpleNamespace

import pytest

from penstock.plan.doctor import gpu
from penstock.plan.doctor.check import NOT_KNOWN, CheckStatus
from penstock.plan.doctor.gpu import gpu_checks

GB = 10**9


class Nvml:
    """The driver's library over one board, which answers what it is told; an exception is raised instead."""

    def __init__(self, **answers):
        self.answers = {
            "Name": "H200",
            "MemoryInfo": SimpleNamespace(total=140 * GB, free=139 * GB, used=1 * GB),
            "CurrPcieLinkGeneration": 5,
            "CurrPcieLinkWidth": 16,
            "MaxPcieLinkGeneration": 5,
            "MaxPcieLinkWidth": 16,
            "PerformanceState": 0,
            "PersistenceMode": 1,
            "ComputeRunningProcesses": [],
            **answers,
        }

    def __getattr__(self, name):
        answer = self.answers[name.removeprefix("nvmlDeviceGet")]

        def ask(handle):
            assert handle == "board"
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


def look(**answers):
    return {check.name: check for check in gpu_checks([(Nvml(**answers), "board")])}


def test_a_healthy_board_is_good_all_over():
    found = look()
    assert list(found) == ["GPU 0", "GPU 0 link", "GPU 0 persistence", "GPU 0 processes"]
    assert all(check.mark is CheckStatus.GOOD for check in found.values())
    assert found["GPU 0"].value == "H200, 139 GB free of 140 GB"
    assert found["GPU 0 link"].value == "gen 5 ×16 of gen 5 ×16"
    assert "At most 63 GB/s" in found["GPU 0 link"].meaning


def test_a_name_may_be_bytes():
    assert look(Name=b"Tesla \xff")["GPU 0"].value.startswith("Tesla �, ")


def test_lanes_that_are_missing_are_marked():
    check = look(CurrPcieLinkWidth=4)["GPU 0 link"]
    assert check.mark is CheckStatus.LOOK
    assert "Only 4 of 16 lanes" in check.meaning
    assert "15.8 GB/s" in check.meaning


def test_a_slow_link_is_a_fault_only_when_the_board_is_awake():
    awake = look(CurrPcieLinkGeneration=3, PerformanceState=0)["GPU 0 link"]
    asleep = look(CurrPcieLinkGeneration=1, PerformanceState=8)["GPU 0 link"]
    silent = look(CurrPcieLinkGeneration=1, PerformanceState=RuntimeError("Not Supported"))["GPU 0 link"]
    assert (awake.mark, asleep.mark, silent.mark) == (CheckStatus.LOOK, CheckStatus.GOOD, CheckStatus.GOOD)
    assert "15.8 GB/s" in awake.meaning
    assert "It sleeps" in asleep.meaning
    assert "At most 63 GB/s" in asleep.meaning


def test_a_generation_yet_to_come_has_no_number():
    check = look(CurrPcieLinkGeneration=9, MaxPcieLinkGeneration=9)["GPU 0 link"]
    assert (check.mark, check.meaning) == (CheckStatus.GOOD, "`penstock probe copy` measures it.")


def test_a_board_without_a_link_is_not_known():
    assert look(CurrPcieLinkWidth=0)["GPU 0 link"].value == NOT_KNOWN


def test_persistence_off_is_marked():
    check = look(PersistenceMode=0)["GPU 0 persistence"]
    assert (check.value, check.mark) == ("off", CheckStatus.LOOK)


def test_others_are_counted_with_their_memory():
    others = [SimpleNamespace(pid=pid, usedGpuMemory=2 * GB) for pid in range(10, 16)]
    check = look(ComputeRunningProcesses=others)["GPU 0 processes"]
    assert (check.value, check.mark) == ("6 hold 12 GB (pid 10, 11, 12, 13, …)", CheckStatus.LOOK)
    hidden = look(ComputeRunningProcesses=[SimpleNamespace(pid=7, usedGpuMemory=None)])["GPU 0 processes"]
    assert hidden.value == "1 (pid 7)"


def test_a_full_board_is_marked():
    full = SimpleNamespace(total=24 * GB, free=10 * GB, used=14 * GB)
    assert look(MemoryInfo=full)["GPU 0"].mark is CheckStatus.LOOK


@pytest.mark.parametrize(
    ("question", "row"),
    [
        ("MemoryInfo", "GPU 0"),
        ("MaxPcieLinkWidth", "GPU 0 link"),
        ("PersistenceMode", "GPU 0 persistence"),
        ("ComputeRunningProcesses", "GPU 0 processes"),
    ],
)
def test_a_question_that_is_refused_costs_its_own_row_only(question, row):
    found = look(**{question: RuntimeError("Insufficient Permissions")})
    assert found[row].value == NOT_KNOWN
    assert "Insufficient Permissions" in found[row].meaning
    assert [name for name, check in found.items() if check.value == NOT_KNOWN] == [row]
    assert all(check.ok for check in found.values())


def test_boards_are_numbered():
    names = [check.name for check in gpu_checks([(Nvml(), "board"), (Nvml(), "board")])]
    assert (names[0], names[4]) == ("GPU 0", "GPU 1")


def test_no_board_is_nothing_to_judge():
    (check,) = gpu_checks([])
    assert (check.value, check.mark) == ("none", CheckStatus.OPEN)


def test_without_the_library_nothing_is_known_and_the_cure_is_said(monkeypatch):
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    (check,) = gpu_checks([])
    assert check.value == NOT_KNOWN
    assert "penstock[gpu]" in check.meaning
