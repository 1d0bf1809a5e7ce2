import os
import subprocess
import sys

import psutil
import pytest

from penstock.watcher.machine import processes
from penstock.watcher.machine.processes import ProcessReading

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def child():
    """A child process that has a child of its own; both wait for input."""
    code = (
        "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); "
        "print(c.pid, flush=True); input(); c.communicate(b'x\\n')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.grandchild = int(process.stdout.readline())
        yield process
        process.communicate("x\n")


@pytest.mark.parametrize("kernel_lists", [True, False])
def test_main_process_workers_and_other_processes_are_distinguished_and_the_main_one_comes_first(
    child, monkeypatch, kernel_lists
):
    monkeypatch.setattr(processes, "_HAS_CHILDREN_LISTS", processes._HAS_CHILDREN_LISTS and kernel_lists)
    found = processes.process_readings({child.pid: (2, 5)})
    roles = {pid: (reading.loader, reading.worker) for (pid, _), reading in found.items()}
    assert next(iter(roles)) == os.getpid()
    assert roles[os.getpid()] == (-1, None)
    assert roles[child.pid] == (2, 5)
    assert roles[child.grandchild] == (-1, -2)


def test_a_worker_that_has_ended_is_left_out():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert ended.pid not in {pid for pid, _ in processes.process_readings({ended.pid: (0, 0)})}


@linux
def test_readings_from_proc_and_from_psutil_agree(child):
    (pid, _), from_proc = processes._read_proc(child.pid)
    _, from_psutil = processes._read_psutil(child.pid)
    assert pid == child.pid
    assert from_proc.cpu_s == pytest.approx(from_psutil.cpu_s, abs=0.05)
    assert from_proc.memory_bytes == pytest.approx(from_psutil.memory_bytes, rel=0.2)


@linux
def test_cpu_time_of_this_process_agrees_with_psutil():
    _, before = processes._read_proc(os.getpid())
    cpu_s = sum(psutil.Process().cpu_times()[:2])
    _, after = processes._read_proc(os.getpid())
    assert before.cpu_s - 0.001 < cpu_s < after.cpu_s + 0.001  # both count in ticks of 10 ms
    assert 0 <= before.queue_s <= after.queue_s


@linux
def test_shared_memory_is_subtracted_and_measured_within_the_budget(monkeypatch):
    measured = []

    def shared(pid):
        measured.append(pid)
        return 900

    thread_s = iter(range(1000))
    monkeypatch.setattr(processes, "_shared_bytes", shared)
    monkeypatch.setattr(processes.time, "thread_time", lambda: next(thread_s) * 0.0025)  # one measurement takes 2.5 ms
    readings = {
        (1, 0.0): ProcessReading(memory_bytes=1000),
        (2, 0.0): ProcessReading(memory_bytes=1000, worker=0, loader=0),
        (3, 0.0): ProcessReading(memory_bytes=500, worker=1, loader=0),
    }
    estimate = processes.SharedMemoryEstimate()
    memory = [
        [process.memory_bytes for process in estimate.without_shared(readings, float(at)).values()] for at in range(14)
    ]
    assert memory[0] == [1000, 100, 0]  # one worker stands for both; the main process is measured later
    assert memory[3] == [100, 100, 0]
    assert measured == [2, 1, 3, 1]


@linux
def test_shared_memory_is_at_most_the_resident_memory_and_0_for_an_unknown_process():
    assert 0 <= processes._shared_bytes(os.getpid()) <= psutil.Process().memory_info().rss
    assert processes._shared_bytes(2**22 + 1) == 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no CPU affinity")
def test_a_reading_counts_the_cores_that_the_process_may_run_on():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})
        found = {pid: reading.cores for (pid, _), reading in processes.process_readings({child.pid: (0, 0)}).items()}
    finally:
        child.communicate(b"\n")
    assert found[child.pid] == 1
    assert found[os.getpid()] == len(os.sched_getaffinity(0))
