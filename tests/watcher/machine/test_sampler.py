"""System samples: arithmetic between two readings, and readings of this machine."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

from penstock.recording.format import DiskLoad, GpuLoad, ProcessLoad
from penstock.testing import FakeClock
from penstock.watcher.machine import kernel_counters as sums
from penstock.watcher.machine import processes
from penstock.watcher.machine import sampler as system
from penstock.watcher.machine.kernel_counters import CounterReading, DiskReading, Throttling
from penstock.watcher.machine.processes import ProcessReading
from penstock.watcher.machine.sampler import SystemSampler, between

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_sums_become_rates_over_the_window():
    line = between(
        CounterReading(
            at_s=10.0, cpu_s=100.0, iowait_s=1.0, steal_s=2.0, swapped_in_bytes=100, major_faults=5, network_bytes=7
        ),
        CounterReading(
            at_s=12.0,
            cpu_s=103.0,
            iowait_s=2.0,
            steal_s=2.5,
            swapped_in_bytes=300,
            major_faults=9,
            network_bytes=17,
            load=4.5,
            memory_free_bytes=11,
            swap_used_bytes=12,
        ),
    )
    assert (line.at_s, line.seconds) == (12.0, 2.0)
    assert (line.cpu, line.iowait, line.steal, line.load) == (1.5, 0.5, 0.25, 4.5)
    assert (line.swapped_in_bytes_s, line.major_faults_s, line.network_bytes_s) == (100.0, 2.0, 5.0)
    assert (line.memory_free_bytes, line.swap_used_bytes) == (11, 12)
    assert (line.throttled, line.pressure, line.disks, line.gpus) == (None, {}, (), ())


def test_each_process_has_its_own_rates_and_a_new_one_counts_from_its_start():
    main, worker, fresh = (1, 10.0), (2, 20.0), (2, 30.0)  # the worker's number came again
    line = between(
        CounterReading(
            at_s=0.0,
            processes={main: ProcessReading(cpu_s=5.0, queue_s=1.0), worker: ProcessReading(cpu_s=50.0, worker=0)},
        ),
        CounterReading(
            at_s=2.0,
            processes={
                main: ProcessReading(cpu_s=6.0, queue_s=1.5, memory_bytes=100),
                fresh: ProcessReading(cpu_s=0.5, worker=3, loader=1, memory_bytes=20),
            },
        ),
    )
    assert line.processes == (
        ProcessLoad(cpu=0.5, queue=0.25, memory_bytes=100),
        ProcessLoad(worker=3, loader=1, cpu=0.25, memory_bytes=20),
    )
    assert line.memory_used_bytes == 120


def test_a_worker_that_ended_is_still_of_the_run_by_its_parents_count():
    main, worker = (1, 10.0), (2, 20.0)
    before = CounterReading(
        at_s=0.0, cpu_s=100.0, processes={main: ProcessReading(cpu_s=5.0), worker: ProcessReading(cpu_s=50.0)}
    )
    after = CounterReading(at_s=1.0, cpu_s=102.0, processes={main: ProcessReading(cpu_s=5.25, children_cpu_s=50.5)})
    assert between(before, after).others_cpu == 2.0 - 0.75


def test_others_never_use_less_than_nothing():
    key = (1, 10.0)
    before = CounterReading(at_s=0.0, cpu_s=1.0, processes={key: ProcessReading(cpu_s=1.0)})
    after = CounterReading(at_s=1.0, cpu_s=1.5, processes={key: ProcessReading(cpu_s=1.52)})
    assert between(before, after).others_cpu == 0.0


def test_a_disk_is_busy_for_its_share_and_holds_its_mean_of_requests():
    before = DiskReading(reads=10, read_bytes=1000, write_bytes=0, busy_s=1.0, waited_s=2.0)
    after = DiskReading(reads=30, read_bytes=5000, write_bytes=512, busy_s=2.0, waited_s=10.0)
    line = between(
        CounterReading(at_s=0.0, disks={"sda": before}), CounterReading(at_s=2.0, disks={"sda": after, "sdb": after})
    )
    assert line.disks == (
        DiskLoad(name="sda", read_bytes_s=2000.0, write_bytes_s=256.0, reads_s=10.0, busy=0.5, in_flight=4.0),
    )


def test_loop_devices_count_while_they_work():
    idle, then, now = DiskReading(reads=1), DiskReading(reads=1), DiskReading(reads=3)
    line = between(
        CounterReading(at_s=0.0, disks={"loop0": idle, "loop1": then, "sda": idle}),
        CounterReading(at_s=1.0, disks={"loop0": idle, "loop1": now, "sda": idle}),
    )
    assert [disk.name for disk in line.disks] == ["loop1", "sda"]


def test_a_counter_that_went_back_counts_as_nothing():
    line = between(
        CounterReading(at_s=0.0, network_bytes=2**32, disks={"sda": DiskReading(busy_s=4e6)}),
        CounterReading(at_s=1.0, network_bytes=5, disks={"sda": DiskReading(busy_s=1.0)}),
    )
    assert (line.network_bytes_s, line.disks[0].busy) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("throttled_s", "throttled_periods", "periods", "share"),
    [
        (0.0, 0, 10, 0.0),
        (0.05, 10, 10, 0.05),  # at the end of every period, for a moment
        (12.0, 5, 10, 0.5),  # sixteen cores at a time, in every other period
        (0.3, 0, 0, 0.3),  # no period ended in the window
    ],
)
def test_the_throttled_share_is_the_tighter_of_two_bounds(throttled_s, throttled_periods, periods, share):
    before = Throttling(throttled_s=100.0, throttled_periods=1000, periods=2000)
    after = Throttling(
        throttled_s=100.0 + throttled_s, throttled_periods=1000 + throttled_periods, periods=2000 + periods
    )
    line = between(
        CounterReading(at_s=0.0, throttling={"a": before}),
        CounterReading(at_s=1.0, throttling={"a": after, "b": after}),
    )
    assert line.throttled == pytest.approx(share)


def test_the_cgroup_that_holds_back_most_counts():
    def reading(at_s, outer_s):
        quiet = Throttling(throttled_s=0.0, throttled_periods=0, periods=0)
        outer = Throttling(throttled_s=outer_s, throttled_periods=int(at_s), periods=int(at_s))
        return CounterReading(at_s=at_s, throttling={"inner": quiet, "outer": outer})

    assert between(reading(0.0, 0.0), reading(1.0, 0.5)).throttled == 0.5


def test_pressure_is_the_share_of_the_window():
    line = between(
        CounterReading(at_s=0.0, pressure_s={"cpu": 5.0}), CounterReading(at_s=2.0, pressure_s={"cpu": 6.0, "io": 1.0})
    )
    assert line.pressure == {"cpu": 0.5}


def test_both_versions_of_cpu_stat_are_understood(tmp_path):
    (tmp_path / "one").write_text("nr_periods 20\nnr_throttled 3\nthrottled_time 2500000000\nnr_bursts 0\n")
    (tmp_path / "two").write_text("usage_usec 1\nnr_periods 20\nnr_throttled 3\nthrottled_usec 2500000\n")
    (tmp_path / "root").write_text("usage_usec 1\n")
    (tmp_path / "odd").write_text("nonsense")
    files = [tmp_path / name for name in ("one", "two", "root", "odd", "none")]
    same = Throttling(throttled_s=2.5, throttled_periods=3, periods=20)
    assert sums._throttling(files) == {str(files[0]): same, str(files[1]): same}


@pytest.fixture
def child():
    """A process of ours with a child of its own; both wait."""
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
def test_processes_of_the_run_are_told_apart_and_the_main_one_comes_first(child, monkeypatch, kernel_lists):
    monkeypatch.setattr(processes, "_CHILDREN", processes._CHILDREN and kernel_lists)
    found = processes.process_readings({child.pid: (2, 5)})
    roles = {pid: (reading.loader, reading.worker) for (pid, _), reading in found.items()}
    assert next(iter(roles)) == os.getpid()
    assert roles[os.getpid()] == (-1, None)
    assert roles[child.pid] == (2, 5)
    assert roles[child.grandchild] == (-1, -2)


def test_a_worker_that_is_gone_is_left_out():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert gone.pid not in {pid for pid, _ in processes.process_readings({gone.pid: (0, 0)})}


@linux
def test_proc_and_psutil_agree_about_a_process(child):
    (pid, _), ours = processes._of_proc(child.pid)
    _, theirs = processes._of_psutil(child.pid)
    assert pid == child.pid
    assert ours.cpu_s == pytest.approx(theirs.cpu_s, abs=0.05)
    assert ours.memory_bytes == pytest.approx(theirs.memory_bytes, rel=0.2)


@linux
def test_queueing_and_processor_time_of_this_process_are_those_of_the_system():
    _, before = processes._of_proc(os.getpid())
    cpu_s = sum(psutil.Process().cpu_times()[:2])
    _, after = processes._of_proc(os.getpid())
    assert before.cpu_s - 0.001 < cpu_s < after.cpu_s + 0.001  # both count in ticks of 10 ms
    assert 0 <= before.queue_s <= after.queue_s


@linux
def test_only_whole_disks_are_read():
    partitions = {os.path.basename(os.path.dirname(path)) for path in map(str, _partition_files())}
    found = sums._disk_readings()
    assert set(found) <= {name.replace("!", "/") for name in os.listdir("/sys/block")}
    assert not partitions & set(found)


def _partition_files():
    from pathlib import Path

    return Path("/sys/class/block").glob("*/partition")


@linux
def test_shared_memory_is_counted_once_and_looked_up_within_the_budget(monkeypatch):
    looks = []

    def shared(pid):
        looks.append(pid)
        return 900

    thread_s = iter(range(1000))
    monkeypatch.setattr(processes, "_shared_bytes", shared)
    monkeypatch.setattr(processes.time, "thread_time", lambda: next(thread_s) * 0.0025)  # a look takes 2.5 ms
    readings = {
        (1, 0.0): ProcessReading(memory_bytes=1000),
        (2, 0.0): ProcessReading(memory_bytes=1000, worker=0, loader=0),
        (3, 0.0): ProcessReading(memory_bytes=500, worker=1, loader=0),
    }
    sharing = processes.SharedMemoryEstimate()
    memory = [
        [process.memory_bytes for process in sharing.without_shared(readings, float(at)).values()] for at in range(14)
    ]
    assert memory[0] == [1000, 100, 0]  # one worker speaks for both, the main process waits for its turn
    assert memory[3] == [100, 100, 0]
    assert looks == [2, 1, 3, 1]


@linux
def test_this_process_shares_no_more_than_it_has():
    assert 0 <= processes._shared_bytes(os.getpid()) <= psutil.Process().memory_info().rss
    assert processes._shared_bytes(2**22 + 1) == 0


def test_a_sample_needs_two_looks_and_time_between_them():
    clock = FakeClock()
    sampler = SystemSampler(clock.now, lambda line: None, dict)
    assert sampler.sample() is None
    assert sampler.sample() is None
    clock.advance(2.0)
    line = sampler.sample()
    assert (line.at_s, line.seconds) == (2.0, 2.0)
    assert line.processes[0].worker is None
    assert line.processes[0].memory_bytes > 1 << 20
    assert line.memory_free_bytes > 0
    assert line.cpu >= 0


@linux
def test_a_system_that_tells_nothing_still_gives_a_sample(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(processes, "read_quickly", refuse)
    monkeypatch.setattr(sums, "read_quickly", refuse)
    monkeypatch.setattr(sums, "_table", refuse)
    clock = FakeClock()
    sampler = SystemSampler(clock.now, lambda line: None, dict)
    sampler.sample()
    clock.advance(1.0)
    line = sampler.sample()
    assert (line.processes, line.disks, line.pressure, line.throttled) == ((), (), {}, None)


def test_accelerators_that_do_not_answer_keep_their_place(monkeypatch):
    def rates(handle):
        if handle == 0:
            raise RuntimeError("lost")
        return SimpleNamespace(gpu=37)

    nvml = SimpleNamespace(
        nvmlDeviceGetUtilizationRates=rates, nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5)
    )
    monkeypatch.setattr(sums, "gpu_handles", lambda: ((nvml, 0), (nvml, 1)))
    assert tuple(sums._gpu_loads()) == (GpuLoad(), GpuLoad(utilisation=0.37, memory_used_bytes=5))


def test_the_thread_puts_lines_until_it_is_stopped(monkeypatch):
    monkeypatch.setattr(system, "EVERY_S", 0.001)
    clock, lines, enough = FakeClock(), [], threading.Event()

    def now():
        clock.advance(1.0)
        return clock.now()

    def put(line):
        lines.append(line)
        if len(lines) == 3:
            enough.set()

    sampler = SystemSampler(now, put, dict)
    sampler.start()
    assert enough.wait(30)
    sampler.stop()
    count = len(lines)
    assert not sampler._thread.is_alive()
    assert [line.at_s for line in lines] == [float(at) for at in range(2, count + 2)]


def test_stopping_what_was_never_started_is_fine():
    SystemSampler(lambda: 0.0, print, dict).stop()


def test_a_driver_that_does_not_answer_keeps_nobody_from_ending(monkeypatch):
    monkeypatch.setattr(system, "STOP_WAIT_S", 0.01)
    asked, answered = threading.Event(), threading.Event()

    def stuck():
        asked.set()
        answered.wait(60)
        return {}

    sampler = SystemSampler(lambda: 0.0, print, stuck)
    sampler.start()
    assert asked.wait(30)
    stopping = threading.Thread(target=sampler.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()
    assert sampler._thread.is_alive()
    answered.set()
    sampler._thread.join(30)


def test_an_error_ends_the_sampling_with_a_warning_and_nothing_else(monkeypatch, caplog):
    monkeypatch.setattr(system, "EVERY_S", 0.001)

    def broken():
        raise RuntimeError("no workers here")

    sampler = SystemSampler(lambda: 0.0, print, broken)
    sampler.start()
    sampler._thread.join(30)
    sampler.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "the system is no longer sampled: RuntimeError: no workers here"
    ]
