import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from penstock.recording.format import Gpu
from penstock.watcher.machine import facts as facts_module
from penstock.watcher.machine.facts import gpu_handles, machine_facts


def test_facts_agree_with_the_operating_system():
    facts = machine_facts()
    assert facts.cores == os.cpu_count()
    assert 1 <= facts.usable_cores <= facts.cores
    assert facts.memory_bytes == psutil.virtual_memory().total
    assert facts.memory_limit_bytes is None or facts.memory_limit_bytes < facts.memory_bytes
    assert facts.python == "{}.{}.{}".format(*sys.version_info)
    assert facts.platform


def test_the_version_of_torch_is_found_without_importing_it():
    code = (
        "import sys; from penstock.watcher.machine.facts import machine_facts; facts = machine_facts(); "
        "print('torch' in sys.modules, facts.torch)"
    )
    imported, version = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert imported == "False"
    assert version[0].isdigit()


def test_the_version_of_an_imported_torch_takes_precedence_over_the_installed_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="9.9+mine"))
    assert machine_facts().torch == "9.9+mine"


def test_without_torch_there_is_no_version(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def not_installed(name):
        raise facts_module.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(facts_module.importlib.metadata, "version", not_installed)
    assert machine_facts().torch is None


def test_a_memory_limit_above_the_machines_memory_is_ignored(monkeypatch):
    monkeypatch.setattr(facts_module, "memory_limit_bytes", lambda: 2**62)
    assert machine_facts().memory_limit_bytes is None


class Nvml:
    """A stand-in for pynvml with three GPUs; the driver fails for the second one."""

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
def test_only_gpus_in_cuda_visible_devices_are_listed_in_its_order(nvml, monkeypatch, visible, gpus):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine_facts().gpus == gpus


@pytest.mark.parametrize("library", [None, SimpleNamespace()])
def test_without_nvml_no_gpus_are_listed(nvml, monkeypatch, library):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert machine_facts().gpus == ()
