import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.recording.format import GpuLoad
from penstock.watcher.machine import kernel_counters
from penstock.watcher.machine.kernel_counters import ThrottlingReading


def test_cpu_stat_of_both_cgroup_versions_is_parsed(tmp_path):
    (tmp_path / "one").write_text("nr_periods 20\nnr_throttled 3\nthrottled_time 2500000000\nnr_bursts 0\n")
    (tmp_path / "two").write_text("usage_usec 1\nnr_periods 20\nnr_throttled 3\nthrottled_usec 2500000\n")
    (tmp_path / "root").write_text("usage_usec 1\n")
    (tmp_path / "odd").write_text("nonsense")
    files = [tmp_path / name for name in ("one", "two", "root", "odd", "none")]
    expected = ThrottlingReading(throttled_s=2.5, throttled_periods=3, periods=20)
    assert kernel_counters._throttling(files) == {str(files[0]): expected, str(files[1]): expected}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/diskstats")
def test_only_whole_disks_are_read():
    partitions = {path.parent.name for path in Path("/sys/class/block").glob("*/partition")}
    found = kernel_counters._disk_readings()
    assert set(found) <= {name.replace("!", "/") for name in os.listdir("/sys/block")}
    assert not partitions & set(found)


def test_a_gpu_whose_driver_fails_keeps_its_index(monkeypatch):
    def rates(handle):
        if handle == 0:
            raise RuntimeError("lost")
        return SimpleNamespace(gpu=37)

    nvml = SimpleNamespace(
        nvmlDeviceGetUtilizationRates=rates, nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5)
    )
    monkeypatch.setattr(kernel_counters, "gpu_handles", lambda: ((nvml, 0), (nvml, 1)))
    assert tuple(kernel_counters._gpu_loads()) == (GpuLoad(), GpuLoad(utilisation=0.37, memory_used_bytes=5))
