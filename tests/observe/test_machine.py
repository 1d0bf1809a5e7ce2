"""Facts about the machine: the real one, and containers and accelerators that the test builds."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from penstock.observe import machine
from penstock.observe.machine import cgroup_folders, gpu_handles, machine_facts, memory_limit_bytes, quota_cores
from penstock.recording.lines import Gpu


@pytest.fixture
def tree(tmp_path):
    """Writes the files of a made-up /sys/fs/cgroup, and /proc/self/cgroup."""

    def tree(membership, files):
        for name, text in files.items():
            path = tmp_path / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (tmp_path / "cgroup").write_text(membership + "\n")
        return tmp_path / "sys", tmp_path / "cgroup"

    return tree


def test_this_machine_is_described_in_its_own_words():
    facts = machine_facts()
    assert facts.cores == os.cpu_count()
    assert 1 <= facts.usable_cores <= facts.cores
    assert facts.memory_bytes == psutil.virtual_memory().total
    assert facts.memory_limit_bytes is None or facts.memory_limit_bytes < facts.memory_bytes
    assert facts.python == "{}.{}.{}".format(*sys.version_info)
    assert facts.platform


def test_torch_is_named_without_being_imported():
    code = (
        "import sys; from penstock.observe.machine import machine_facts; facts = machine_facts(); "
        "print('torch' in sys.modules, facts.torch)"
    )
    imported, version = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert imported == "False"
    assert version[0].isdigit()


def test_the_torch_in_use_counts_not_the_one_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="9.9+mine"))
    assert machine_facts().torch == "9.9+mine"


def test_without_torch_there_is_no_version(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def absent(name):
        raise machine.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine.importlib.metadata, "version", absent)
    assert machine_facts().torch is None


def test_the_tightest_quota_above_us_counts(tree):
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


def test_an_old_cgroup_is_found_by_its_controller(tree):
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


def test_a_mixture_of_old_and_new_falls_back_to_the_new_one(tree):
    root, membership = tree(
        "1:name=systemd:/x\n0::/job", {"unified/cgroup.controllers": "", "unified/job/cpu.stat": ""}
    )
    assert list(cgroup_folders("cpu", root, membership)) == [root / "unified" / "job", root / "unified"]


@pytest.mark.parametrize("path", ["/docker/0123/unseen", "/../../other"])
def test_a_container_that_is_told_the_hosts_path_looks_at_its_own_root(tree, path):
    root, membership = tree(f"1:cpu:{path}", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"})
    assert list(cgroup_folders("cpu", root, membership)) == [root / "cpu"]
    assert quota_cores(root, membership) == 3.0


@pytest.mark.parametrize("text", ["", "nonsense", "max 100000", "1 0", "-1 100000"])
def test_a_quota_that_makes_no_sense_or_sets_none_is_none(tree, text):
    assert quota_cores(*tree("0::/", {"cgroup.controllers": "cpu", "cpu.max": text})) is None


@pytest.mark.parametrize("membership", ["", "nonsense", "::::", "0::/"])
def test_without_cgroups_nothing_limits(tree, membership):
    where = tree(membership, {})
    assert list(cgroup_folders("cpu", *where)) == []
    assert (quota_cores(*where), memory_limit_bytes(*where)) == (None, None)


def test_a_quota_cuts_the_usable_cores_and_a_limit_beyond_the_machine_is_none(monkeypatch):
    monkeypatch.setattr(machine, "quota_cores", lambda: 2.5)
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: 2**62)
    facts = machine_facts()
    assert (facts.usable_cores, facts.quota_cores, facts.memory_limit_bytes) == (3, 2.5, None)


class Nvml:
    """The driver's library with three accelerators; the second does not answer."""

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        return range(3)[index]

    def nvmlDeviceGetHandleByUUID(self, name):
        return {"GPU-c": 2}[name]

    def nvmlDeviceGetName(self, handle):
        if handle == 1:
            raise RuntimeError("lost")
        return f"H{handle}".encode() if handle else "H0"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=1000 + handle, used=handle)


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu_handles.cache_clear()
    yield
    gpu_handles.cache_clear()


H0, UNKNOWN, H2 = Gpu(name="H0", memory_bytes=1000), Gpu(name="unknown"), Gpu(name="H2", memory_bytes=1002)


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, (H0, UNKNOWN, H2)),
        ("2, 0", (H2, H0)),
        ("GPU-c", (H2,)),
        ("", ()),
        ("-1", ()),
        ("7", ()),
    ],
)
def test_accelerators_are_those_the_run_may_use(nvml, monkeypatch, visible, gpus):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine_facts().gpus == gpus


@pytest.mark.parametrize("library", [None, SimpleNamespace()])
def test_without_a_driver_there_are_no_accelerators(nvml, monkeypatch, library):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert machine_facts().gpus == ()
