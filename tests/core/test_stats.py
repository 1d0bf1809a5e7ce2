from penstock.core.stats import GpuTimes


def test_restarted_gpu_times_are_not_subtracted():
    assert GpuTimes(1.0, 0.1, 0.2).since(GpuTimes(5.0, 1.0, 1.0)) == GpuTimes(1.0, 0.1, 0.2)
    assert GpuTimes(5.0, 1.0, 1.0).since(GpuTimes(1.0, 0.25, 0.5)) == GpuTimes(4.0, 0.75, 0.5)
