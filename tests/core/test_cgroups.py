"""Limits of cgroups, with a /sys/fs/cgroup that the test builds."""

import psutil
import pytest

from penstock.core.cgroups import cgroup_folders, free_bytes, memory_left_bytes, memory_limit_bytes, quota_cores


def test_the_tightest_limit_of_all_cgroups_above_counts(tree):
    where = tree(
        "0::/job/step",
        {
            "cgroup.controllers": "cpu memory",
            "job/cpu.max": "150000 100000",
            "job/step/cpu.max": "400000 100000",
            "job/memory.max": "max",
            "job/step/memory.max": "1000000",
        },
    )
    assert quota_cores(*where) == 1.5
    assert memory_limit_bytes(*where) == 1_000_000


def test_a_cgroup_of_version_1_is_found_by_its_controller(tree):
    where = tree(
        "4:memory:/box\n1:cpu,cpuacct:/job\n0::/",
        {
            "cpu/job/cpu.cfs_quota_us": "50000",
            "cpu/job/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/box/memory.limit_in_bytes": "5000",
            "unified/cgroup.controllers": "",
        },
    )
    assert quota_cores(*where) == 0.5
    assert memory_limit_bytes(*where) == 5000


def test_a_mixture_of_versions_falls_back_to_version_2(tree):
    root, membership = tree(
        "1:name=systemd:/x\n0::/job", {"unified/cgroup.controllers": "", "unified/job/cpu.stat": ""}
    )
    assert list(cgroup_folders("cpu", root, membership)) == [root / "unified" / "job", root / "unified"]


@pytest.mark.parametrize("path", ["/docker/0123/unseen", "/../../other"])
def test_a_container_that_has_a_path_of_the_host_uses_the_root_of_its_mount(tree, path):
    root, membership = tree(f"1:cpu:{path}", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"})
    assert list(cgroup_folders("cpu", root, membership)) == [root / "cpu"]
    assert quota_cores(root, membership) == 3.0


@pytest.mark.parametrize("text", ["", "nonsense", "max 100000", "1 0", "-1 100000"])
def test_an_unreadable_or_unlimited_quota_is_none(tree, text):
    assert quota_cores(*tree("0::/", {"cgroup.controllers": "cpu", "cpu.max": text})) is None


@pytest.mark.parametrize("membership", ["", "nonsense", "::::", "0::/"])
def test_without_cgroups_there_is_no_limit(tree, membership):
    where = tree(membership, {})
    assert list(cgroup_folders("cpu", *where)) == []
    assert (quota_cores(*where), memory_limit_bytes(*where)) == (None, None)


GIB = 1 << 30
V1 = {
    "memory/memory.limit_in_bytes": f"{GIB}",
    "memory/memory.usage_in_bytes": f"{GIB // 2}",
    "memory/memory.stat": f"total_inactive_file {GIB // 8}\ntotal_active_file {GIB // 8}",
}
V2 = {
    "cgroup.controllers": "memory",
    "memory.max": f"{GIB}",
    "memory.current": f"{GIB // 2}",
    "memory.stat": f"inactive_file {GIB // 8}\nactive_file {GIB // 8}",
}


@pytest.mark.parametrize(("membership", "files"), [("2:memory:/", V1), ("0::/", V2)])
def test_cached_file_pages_of_a_limited_cgroup_count_as_free(tree, membership, files):
    where = tree(membership, files)
    assert memory_left_bytes(*where) == GIB * 3 // 4
    assert free_bytes(*where) == min(GIB * 3 // 4, free_bytes())


def test_the_cgroup_with_least_memory_left_counts_even_if_one_above_has_a_lower_limit(tree):
    files = {
        "cgroup.controllers": "memory",
        "job/memory.max": f"{2 * GIB}",
        "job/memory.current": "0",
        "job/step/memory.max": f"{4 * GIB}",
        "job/step/memory.current": f"{3 * GIB}",
    }
    assert memory_left_bytes(*tree("0::/job/step", files)) == GIB


def test_a_cgroup_above_its_limit_has_nothing_left(tree):
    files = {"cgroup.controllers": "memory", "memory.max": "100", "memory.current": "200"}
    assert memory_left_bytes(*tree("0::/", files)) == 0


@pytest.mark.parametrize("limit", ["max", "", "nonsense"])
def test_without_a_limit_the_memory_of_the_machine_counts(tree, limit):
    where = tree("0::/", {"cgroup.controllers": "memory", "memory.max": limit, "memory.current": "7"})
    assert memory_left_bytes(*where) is None
    assert abs(free_bytes(*where) - psutil.virtual_memory().available) < GIB
