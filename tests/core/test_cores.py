"""The number of cores, with cgroups that the test builds."""

import os

import pytest

from penstock.core import cores as cores_module
from penstock.core.cgroups import quota_cores
from penstock.core.cores import loader_cores, rank_cores, usable_cores, worker_cores
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
def test_the_quota_of_a_container_limits_the_affinity_mask(tree, eight_cores, cpu_max, cores):
    assert usable_cores(*tree("0::/", {"cgroup.controllers": "cpu", "cpu.max": cpu_max})) == cores


@pytest.mark.parametrize(("quota_us", "cores"), [("-1", 8), ("0", 8), ("300000", 3), ("1000", 1)])
def test_the_quota_of_cgroup_version_1_counts_too(tree, eight_cores, quota_us, cores):
    files = {"cpu/cpu.cfs_quota_us": quota_us, "cpu/cpu.cfs_period_us": "100000"}
    assert usable_cores(*tree("3:cpu,cpuacct:/", files)) == cores


def test_the_quota_of_a_cgroup_outside_containers_counts_too(tree, eight_cores):
    files = {"cgroup.controllers": "cpu", "user.slice/job.scope/cpu.max": "150000 100000"}
    assert usable_cores(*tree("0::/user.slice/job.scope", files)) == 2


def test_without_a_cgroup_the_affinity_mask_counts(tree, eight_cores):
    assert usable_cores(*tree("", {})) == 8


def test_without_an_affinity_mask_the_cores_of_the_machine_count(tree, monkeypatch):
    where = tree("", {})
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores(*where) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(*where) == 1


def test_this_machine_has_between_one_core_and_its_cpu_count():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def nodes(root, **lists):
    for name, cpulist in lists.items():
        (root / name).mkdir(parents=True)
        (root / name / "cpulist").write_text(cpulist + "\n")
    return root


def test_cores_of_the_memory_node_of_this_process_come_first(tmp_path, eight_cores, monkeypatch):
    monkeypatch.setattr(cores_module, "_current_core", lambda: 5)
    where = nodes(tmp_path, node0="0-1,4", node1="2-3,5-7")
    assert worker_cores(8, 0, where) == (2, 3, 5, 6, 7, 0, 1, 4)


def test_every_rank_of_a_machine_takes_the_cores_after_those_of_the_rank_before(tmp_path, eight_cores):
    assert worker_cores(3, 0, tmp_path) == (0, 1, 2)
    assert worker_cores(3, 1, tmp_path) == (3, 4, 5)
    assert worker_cores(3, 2, tmp_path) == (6, 7, 0)


def test_the_current_core_is_in_the_affinity_mask():
    if hasattr(os, "sched_getaffinity"):
        assert cores_module._current_core() in os.sched_getaffinity(0)


def test_affinity_is_refused_where_the_system_does_not_have_it(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with pytest.raises(SettingError, match="cannot be bound"):
        worker_cores(2, 0, tmp_path)


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (4, 4), (5, 4), (16, 15)])
def test_a_loader_leaves_one_of_more_than_four_cores_free(monkeypatch, cores, count):
    monkeypatch.setattr(cores_module, "usable_cores", lambda: cores)
    assert loader_cores() == count


@pytest.fixture
def ranks(monkeypatch, tree):
    """Set the number of ranks, the affinity masks of this process and of its launcher, and the quota of the cgroup."""

    def ranks(count, mine, launchers, quota="max 100000"):
        where = tree("0::/", {"cgroup.controllers": "cpu", "cpu.max": quota})
        monkeypatch.setattr(cores_module, "quota_cores", lambda *_: quota_cores(*where))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(launchers if pid else mine)), raising=False)
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(count))

    return ranks


@pytest.mark.parametrize(
    ("count", "mine", "launchers", "share"),
    [
        (1, 64, 64, 64),
        (8, 64, 64, 8),
        (8, 8, 64, 8),
        (8, 32, 64, 8),
        (4, 4, 64, 4),
        (8, 2, 2, 1),
        (3, 8, 8, 2),
        (2, 8, 1, 4),
    ],
    ids=["alone", "shared", "bound each", "bound to a node", "bound to few", "too few", "rest", "launcher bound"],
)
def test_ranks_divide_the_cores_that_they_share(ranks, count, mine, launchers, share):
    ranks(count, mine, launchers)
    assert rank_cores() == share


def test_ranks_divide_the_quota_too(ranks):
    ranks(4, 64, 64, "1600000 100000")
    assert (rank_cores(), loader_cores()) == (4, 4)


def test_slurm_tasks_that_are_not_bound_divide_the_cores_of_the_job(ranks, monkeypatch):
    ranks(4, 64, 64)
    for name, value in {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_CPUS_ON_NODE": "32"}.items():
        monkeypatch.setenv(name, value)
    assert (rank_cores(), loader_cores()) == (8, 7)


def test_a_loader_may_use_at_least_one_core_of_this_machine():
    assert 1 <= loader_cores() <= usable_cores()
