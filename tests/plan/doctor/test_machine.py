"""Checks of the machine: cores, memory, limits of a process, versions."""

import subprocess
import sys

import psutil
import pytest

from penstock.plan.doctor import machine
from penstock.plan.doctor.check import NOT_KNOWN, CheckStatus
from penstock.plan.doctor.machine import (
    DISTRIBUTIONS,
    UNLIMITED,
    MemoryFacts,
    MemorySpace,
    core_checks,
    installed_version,
    jpeg_decoder_check,
    limit_checks,
    memory_checks,
    numa_check,
    open_files_check,
    read_memory,
    read_numa_nodes,
    start_method_check,
    version_checks,
)
from penstock.recording.format import Gpu, Machine

GB = 10**9


# -- cores ---------------------------------------------------------------------------------------------------------


def core_check(**facts):
    (check,) = core_checks(Machine(**facts))
    return check


def test_all_cores_usable_is_good():
    check = core_check(cores=16, usable_cores=16)
    assert (check.value, check.mark) == ("16 of 16", CheckStatus.GOOD)
    assert "16 workers" in check.meaning


def test_affinity_mask_warns_about_cpu_count():
    check = core_check(cores=64, usable_cores=8)
    assert (check.value, check.mark) == ("8 of 64", CheckStatus.ATTENTION)
    assert "os.cpu_count() still says 64" in check.meaning


def test_quota_is_shown_with_its_fraction():
    check = core_check(cores=64, usable_cores=2, quota_cores=1.5)
    assert (check.value, check.mark) == ("2 of 64 (quota 1.5)", CheckStatus.ATTENTION)
    assert "1.5 cores' worth of time" in check.meaning


def test_quota_larger_than_the_machine_limits_nothing():
    assert core_check(cores=4, usable_cores=4, quota_cores=8.0).mark is CheckStatus.GOOD


def test_single_core_is_shared_with_the_training():
    assert core_check(cores=1, usable_cores=1).mark is CheckStatus.ATTENTION


# -- memory --------------------------------------------------------------------------------------------------------

PLENTY = {
    "total_bytes": 64 * GB,
    "free_bytes": 50 * GB,
    "shm": MemorySpace(32 * GB, 0),
    "swap": MemorySpace(8 * GB, 10**6),
}


def memory_rows(**facts):
    return {check.name: check for check in memory_checks(MemoryFacts(**{**PLENTY, **facts}))}


def test_enough_memory_of_every_kind_is_good():
    found = memory_rows()
    assert list(found) == ["memory", "/dev/shm", "swap"]
    assert all(check.mark is CheckStatus.GOOD for check in found.values())
    assert found["memory"].value == "50 GB free of 64 GB"


def test_container_limit_counts_instead_of_the_machine():
    check = memory_rows(limit_bytes=16 * GB, free_bytes=12 * GB)["memory"]
    assert check.value == "12 GB free of 16 GB (limit; the machine has 64 GB)"
    assert "killed without a message" in check.meaning
    assert memory_rows(limit_bytes=16 * GB, free_bytes=1 * GB)["memory"].mark is CheckStatus.ATTENTION


@pytest.mark.parametrize(
    ("free", "mark"),
    [
        (64 << 20, CheckStatus.BAD),
        (0, CheckStatus.BAD),
        (500 << 20, CheckStatus.ATTENTION),
        (1 << 30, CheckStatus.GOOD),
    ],
)
def test_shared_memory_is_judged_by_its_free_part(free, mark):
    check = memory_rows(shm=MemorySpace(4 * GB, 4 * GB - free))["/dev/shm"]
    assert check.mark is mark
    assert ("--shm-size" in check.meaning) is (mark is not CheckStatus.GOOD)


def test_used_swap_needs_attention_and_no_swap_is_good():
    assert memory_rows(swap=MemorySpace(8 * GB, 4 * GB))["swap"].mark is CheckStatus.ATTENTION
    without = memory_rows(swap=MemorySpace(0, 0))["swap"]
    assert (without.value, without.mark) == ("none", CheckStatus.GOOD)


def test_unreported_memory_gives_rows_that_say_so():
    checks = list(memory_checks(MemoryFacts()))
    assert [check.value for check in checks] == [NOT_KNOWN] * 3
    assert all(check.ok for check in checks)


def test_memory_of_this_machine_is_read(tmp_path):
    facts = Machine(memory_bytes=psutil.virtual_memory().total)
    found = read_memory(facts, shm=tmp_path)
    assert 0 < found.free_bytes <= facts.memory_bytes
    assert 0 < found.shm.free_bytes <= found.shm.total_bytes
    assert read_memory(facts, shm=tmp_path / "missing").shm is None


@pytest.mark.parametrize("error", [PermissionError("no"), RuntimeError("odd kernel"), psutil.AccessDenied()])
def test_unreadable_memory_facts_are_left_out(monkeypatch, tmp_path, error):
    def refuse():
        raise error

    monkeypatch.setattr(machine, "free_bytes", refuse)
    monkeypatch.setattr(machine.psutil, "swap_memory", refuse)
    found = read_memory(Machine(memory_bytes=GB), shm=tmp_path)
    assert (found.free_bytes, found.swap) == (None, None)
    assert [check.value for check in memory_checks(found)][::2] == [NOT_KNOWN, NOT_KNOWN]


# -- limits of a process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "value", "mark"),
    [
        ((256, 10240), "256 (at most 10,240)", CheckStatus.ATTENTION),
        ((1024, UNLIMITED), "1,024 (at most unlimited)", CheckStatus.GOOD),
        ((UNLIMITED, UNLIMITED), "unlimited", CheckStatus.GOOD),
        (None, NOT_KNOWN, CheckStatus.UNKNOWN),
    ],
)
def test_open_files_are_judged_by_the_soft_limit(limits, value, mark):
    check = open_files_check(limits)
    assert (check.value, check.mark) == (value, mark)


def write_node(root, number, cores):
    (root / f"node{number}").mkdir()
    (root / f"node{number}" / "cpulist").write_text(f"{cores}\n")


def test_numa_nodes_with_cores_are_counted(tmp_path):
    write_node(tmp_path, 0, "0-7")
    assert numa_check(read_numa_nodes(tmp_path)).value == "1"
    write_node(tmp_path, 1, "8-15")
    write_node(tmp_path, 2, "")  # memory only
    check = numa_check(read_numa_nodes(tmp_path))
    assert (check.value, check.mark) == ("2", CheckStatus.GOOD)
    assert "numactl" in check.meaning


def test_numa_nodes_are_not_known_without_sys(tmp_path):
    assert read_numa_nodes(tmp_path / "missing") is None
    assert numa_check(None).value == NOT_KNOWN


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_start_method_is_explained(method):
    check = start_method_check(method)
    assert (check.value, check.mark) == (method, CheckStatus.GOOD)
    assert "torch" in check.meaning


def test_unknown_start_method_is_no_error():
    assert start_method_check("teleport").value == "teleport"


def test_limit_checks_of_this_machine_give_three_rows(tmp_path):
    assert [check.name for check in limit_checks(tmp_path)] == ["open files", "NUMA nodes", "start method"]


# -- versions ------------------------------------------------------------------------------------------------------

INSTALLED = {**dict.fromkeys(DISTRIBUTIONS.values(), "1.2"), "opencv-python-headless": "4.9"}


def version_rows(facts=None, versions=INSTALLED):
    facts = facts or Machine(python="3.12.1", platform="Linux 6 x86_64", torch="2.13.0")
    return {check.name: check for check in version_checks(facts, versions.get)}


def test_complete_installation_is_good():
    found = version_rows()
    assert list(found) == ["python", "torch", "packages", "JPEG decoder"]
    assert all(found[name].mark is CheckStatus.GOOD for name in ("python", "torch", "packages"))
    assert found["packages"].value == "penstock 1.2, numpy 1.2, simplejpeg 1.2, libdeflate 1.2, opencv 4.9"


def test_cpu_build_of_torch_beside_a_gpu_is_bad():
    facts = Machine(python="3.12.1", torch="2.13.0+cpu")
    assert version_rows(facts)["torch"].mark is CheckStatus.GOOD
    assert version_rows(Machine(torch="2.13.0+cpu", gpus=(Gpu(name="H200"),)))["torch"].mark is CheckStatus.BAD


def test_missing_torch_is_not_judged():
    check = version_rows(Machine(python="3.12.1"))["torch"]
    assert (check.value, check.mark) == ("none", CheckStatus.UNKNOWN)


def test_missing_decoder_is_named():
    check = version_rows(versions={name: known for name, known in INSTALLED.items() if name != "deflate"})["packages"]
    assert check.mark is CheckStatus.BAD
    assert check.meaning.startswith("libdeflate cannot be found")


def test_two_distributions_of_opencv_are_named():
    check = version_rows(versions={**INSTALLED, "opencv-python": "4.9"})["packages"]
    assert check.mark is CheckStatus.ATTENTION
    assert "opencv-python-headless and opencv-python" in check.meaning


def test_the_decoder_of_jpegs_that_is_in_use_is_named():
    compiled = jpeg_decoder_check(False, None)
    assert (compiled.value, compiled.mark) == ("compiled", CheckStatus.GOOD)
    missing = jpeg_decoder_check(False, "No module named 'penstock._decode'")
    assert (missing.value, missing.mark) == ("simplejpeg", CheckStatus.ATTENTION)
    assert "No module named" in missing.meaning
    assert "libjpeg-dev" in missing.meaning
    turned_off = jpeg_decoder_check(True, None)
    assert (turned_off.value, turned_off.mark) == ("simplejpeg", CheckStatus.ATTENTION)
    assert "PENSTOCK_COMPILED" in turned_off.meaning


def test_versions_are_read_without_importing_the_packages():
    assert installed_version("numpy")[0].isdigit()
    assert installed_version("no-such-distribution") is None
    code = (
        "import sys; from penstock.plan.doctor.machine import version_checks; "
        "from penstock.recording.format import Machine; list(version_checks(Machine())); "
        "print(*sorted({'torch', 'cv2', 'simplejpeg'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
