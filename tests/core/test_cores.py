"""How many cores, with cgroups that the test builds."""

import os

import pytest

from penstock.core import cores as cores_module
from penstock.core.cores import loader_cores, usable_cores, worker_cores
from penstock.errors import SettingError


@pytest.fixture
def eight_cores(monkeypatch):
    """A machine whose affinity mask allows eight cores, on every platform."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("6400000 100000", 8),
    ],
)
def test_the_quota_of_a_container_cuts_the_affinity_mask(tree, eight_cores, cpu_max, cores):
    assert usable_cores(*tree("0::/", {"cgroup.controllers": "cpu", "cpu.max": cpu_max})) == cores


@pytest.mark.parametrize(("quota_us", "cores"), [("-1", 8), ("0", 8), ("300000", 3), ("1000", 1)])
def test_an_old_cgroup_is_understood_too(tree, eight_cores, quota_us, cores):
    files = {"cpu/cpu.cfs_quota_us": quota_us, "cpu/cpu.cfs_period_us": "100000"}
    assert usable_cores(*tree("3:cpu,cpuacct:/", files)) == cores


def test_the_quota_of_a_cgroup_that_is_no_container_counts_too(tree, eight_cores):
    files = {"cgroup.controllers": "cpu", "user.slice/job.scope/cpu.max": "150000 100000"}
    assert usable_cores(*tree("0::/user.slice/job.scope", files)) == 2


def test_without_a_cgroup_the_affinity_mask_decides(tree, eight_cores):
    assert usable_cores(*tree("", {})) == 8


def test_without_an_affinity_mask_the_machine_decides(tree, monkeypatch):
    where = tree("", {})
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores(*where) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(*where) == 1


def test_this_machine_has_at_least_one_core_and_no_more_than_it_says():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def nodes(root, **lists):
    for name, cpulist in lists.items():
        (root / name).mkdir(parents=True)
        (root / name / "cpulist").write_text(cpulist + "\n")
    return root


def test_cores_of_the_memory_node_we_run_on_come_first(tmp_path, eight_cores, monkeypatch):
    monkeypatch.setattr(cores_module, "_current_core", lambda: 5)
    where = nodes(tmp_path, node0="0-1,4", node1="2-3,5-7")
    assert worker_cores(8, 0, where) == (2, 3, 5, 6, 7, 0, 1, 4)


def test_every_rank_of_a_machine_starts_where_the_one_before_ends(tmp_path, eight_cores):
    assert worker_cores(3, 0, tmp_path) == (0, 1, 2)
    assert worker_cores(3, 1, tmp_path) == (3, 4, 5)
    assert worker_cores(3, 2, tmp_path) == (6, 7, 0)


def test_the_core_we_run_on_is_one_we_may_use():
    if hasattr(os, "sched_getaffinity"):
        assert cores_module._current_core() in os.sched_getaffinity(0)


def test_pinning_where_the_system_cannot_is_refused(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with pytest.raises(SettingError, match="cannot be pinned"):
        worker_cores(2, 0, tmp_path)


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (4, 4), (5, 4), (16, 15)])
def test_as_many_as_a_loader_would_keep_busy(monkeypatch, cores, count):
    monkeypatch.setattr(cores_module, "usable_cores", lambda: cores)
    assert loader_cores() == count


def test_this_machine_has_some():
    assert 1 <= loader_cores() <= usable_cores()
