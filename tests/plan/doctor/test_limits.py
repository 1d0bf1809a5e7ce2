import pytest

from penstock.plan.doctor.check import NOT_KNOWN, CheckStatus
from penstock.plan.doctor.machine import (
    UNLIMITED,
    limit_checks,
    memory_nodes,
    open_files,
    read_nodes,
    start_method,
)


@pytest.mark.parametrize(
    ("limits", "value", "mark"),
    [
        ((256, 10240), "256 (at most 10,240)", CheckStatus.LOOK),
        ((1024, UNLIMITED), "1,024 (at most unlimited)", CheckStatus.GOOD),
        ((UNLIMITED, UNLIMITED), "unlimited", CheckStatus.GOOD),
        (None, NOT_KNOWN, CheckStatus.OPEN),
    ],
)
def test_open_files_are_what_tensors_cross_as(limits, value, mark):
    check = open_files(limits)
    assert (check.value, check.mark) == (value, mark)


def node(root, number, cores):
    (root / f"node{number}").mkdir()
    (root / f"node{number}" / "cpulist").write_text(f"{cores}\n")


def test_nodes_with_cores_are_counted(tmp_path):
    node(tmp_path, 0, "0-7")
    assert memory_nodes(read_nodes(tmp_path)).value == "1"
    node(tmp_path, 1, "8-15")
    node(tmp_path, 2, "")  # memory only
    check = memory_nodes(read_nodes(tmp_path))
    assert (check.value, check.mark) == ("2", CheckStatus.GOOD)
    assert "numactl" in check.meaning


def test_without_sys_nodes_are_not_known(tmp_path):
    assert read_nodes(tmp_path / "nowhere") is None
    assert memory_nodes(None).value == NOT_KNOWN


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_start_method_has_its_meaning(method):
    check = start_method(method)
    assert (check.value, check.mark) == (method, CheckStatus.GOOD)
    assert "torch" in check.meaning


def test_a_method_nobody_knows_is_no_error():
    assert start_method("teleport").value == "teleport"


def test_this_machine_gives_three_rows(tmp_path):
    assert [check.name for check in limit_checks(tmp_path)] == ["open files", "NUMA nodes", "start method"]
