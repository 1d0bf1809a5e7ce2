"""Checks of GPUs, with a stand-in for the driver."""

from types import SimpleNamespace

import pytest

from penstock.plan.doctor import gpu
from penstock.plan.doctor.check import NOT_KNOWN, CheckStatus
from penstock.plan.doctor.gpu import gpu_checks

GB = 10**9


class Nvml:
    """A stand-in for the NVML library with one GPU; an answer that is an exception is raised."""

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

        def query(handle):
            assert handle == "gpu0"
            if isinstance(answer, Exception):
                raise answer
            return answer

        return query


def gpu_rows(**answers):
    return {check.name: check for check in gpu_checks([(Nvml(**answers), "gpu0")])}


def test_healthy_gpu_is_good_in_every_row():
    found = gpu_rows()
    assert list(found) == ["GPU 0", "GPU 0 link", "GPU 0 persistence", "GPU 0 processes"]
    assert all(check.mark is CheckStatus.GOOD for check in found.values())
    assert found["GPU 0"].value == "H200, 139 GB free of 140 GB"
    assert found["GPU 0 link"].value == "gen 5 ×16 of gen 5 ×16"
    assert "At most 63 GB/s" in found["GPU 0 link"].meaning


def test_name_may_be_bytes():
    assert gpu_rows(Name=b"Tesla \xff")["GPU 0"].value.startswith("Tesla �, ")


def test_missing_lanes_need_attention():
    check = gpu_rows(CurrPcieLinkWidth=4)["GPU 0 link"]
    assert check.mark is CheckStatus.ATTENTION
    assert "Only 4 of 16 lanes" in check.meaning
    assert "15.8 GB/s" in check.meaning


def test_slow_link_is_a_fault_only_when_the_gpu_is_awake():
    awake = gpu_rows(CurrPcieLinkGeneration=3, PerformanceState=0)["GPU 0 link"]
    asleep = gpu_rows(CurrPcieLinkGeneration=1, PerformanceState=8)["GPU 0 link"]
    silent = gpu_rows(CurrPcieLinkGeneration=1, PerformanceState=RuntimeError("Not Supported"))["GPU 0 link"]
    assert (awake.mark, asleep.mark, silent.mark) == (CheckStatus.ATTENTION, CheckStatus.GOOD, CheckStatus.GOOD)
    assert "15.8 GB/s" in awake.meaning
    assert "It sleeps" in asleep.meaning
    assert "At most 63 GB/s" in asleep.meaning


def test_unknown_pcie_generation_has_no_bandwidth():
    check = gpu_rows(CurrPcieLinkGeneration=9, MaxPcieLinkGeneration=9)["GPU 0 link"]
    assert (check.mark, check.meaning) == (CheckStatus.GOOD, "`penstock probe copy` measures it.")


def test_gpu_without_a_link_is_not_known():
    assert gpu_rows(CurrPcieLinkWidth=0)["GPU 0 link"].value == NOT_KNOWN


def test_persistence_off_needs_attention():
    check = gpu_rows(PersistenceMode=0)["GPU 0 persistence"]
    assert (check.value, check.mark) == ("off", CheckStatus.ATTENTION)


def test_other_processes_are_counted_with_their_memory():
    others = [SimpleNamespace(pid=pid, usedGpuMemory=2 * GB) for pid in range(10, 16)]
    check = gpu_rows(ComputeRunningProcesses=others)["GPU 0 processes"]
    assert (check.value, check.mark) == ("6 hold 12 GB (pid 10, 11, 12, 13, …)", CheckStatus.ATTENTION)
    hidden = gpu_rows(ComputeRunningProcesses=[SimpleNamespace(pid=7, usedGpuMemory=None)])["GPU 0 processes"]
    assert hidden.value == "1 (pid 7)"


def test_full_gpu_needs_attention():
    full = SimpleNamespace(total=24 * GB, free=10 * GB, used=14 * GB)
    assert gpu_rows(MemoryInfo=full)["GPU 0"].mark is CheckStatus.ATTENTION


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("MemoryInfo", "GPU 0"),
        ("MaxPcieLinkWidth", "GPU 0 link"),
        ("PersistenceMode", "GPU 0 persistence"),
        ("ComputeRunningProcesses", "GPU 0 processes"),
    ],
)
def test_refused_query_affects_its_own_row_only(query, row):
    found = gpu_rows(**{query: RuntimeError("Insufficient Permissions")})
    assert found[row].value == NOT_KNOWN
    assert "Insufficient Permissions" in found[row].meaning
    assert [name for name, check in found.items() if check.value == NOT_KNOWN] == [row]
    assert all(check.ok for check in found.values())


def test_gpus_are_numbered():
    names = [check.name for check in gpu_checks([(Nvml(), "gpu0"), (Nvml(), "gpu0")])]
    assert (names[0], names[4]) == ("GPU 0", "GPU 1")


def test_missing_gpu_is_not_judged():
    (check,) = gpu_checks([])
    assert (check.value, check.mark) == ("none", CheckStatus.UNKNOWN)


def test_missing_nvml_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    (check,) = gpu_checks([])
    assert check.value == NOT_KNOWN
    assert "penstock[gpu]" in check.meaning
