import sys
import threading

import pytest

from penstock.recording.format import DiskLoad, ProcessLoad
from penstock.testing import FakeClock
from penstock.watcher.machine import kernel_counters, processes, sampler
from penstock.watcher.machine.kernel_counters import CounterReading, DiskReading, ThrottlingReading
from penstock.watcher.machine.processes import ProcessReading
from penstock.watcher.machine.sampler import SystemSampler, system_line

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_counters_become_rates_over_the_interval():
    line = system_line(
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


def test_each_process_has_its_own_rates_and_a_new_process_counts_from_its_start():
    main, worker, fresh = (1, 10.0), (2, 20.0), (2, 30.0)  # another process got the worker's id
    line = system_line(
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


def test_cpu_time_of_a_worker_that_ended_is_counted_through_its_parent():
    main, worker = (1, 10.0), (2, 20.0)
    before = CounterReading(
        at_s=0.0, cpu_s=100.0, processes={main: ProcessReading(cpu_s=5.0), worker: ProcessReading(cpu_s=50.0)}
    )
    after = CounterReading(at_s=1.0, cpu_s=102.0, processes={main: ProcessReading(cpu_s=5.25, children_cpu_s=50.5)})
    assert system_line(before, after).others_cpu == 2.0 - 0.75


def test_cpu_use_of_other_processes_is_never_negative():
    key = (1, 10.0)
    before = CounterReading(at_s=0.0, cpu_s=1.0, processes={key: ProcessReading(cpu_s=1.0)})
    after = CounterReading(at_s=1.0, cpu_s=1.5, processes={key: ProcessReading(cpu_s=1.52)})
    assert system_line(before, after).others_cpu == 0.0


def test_a_disk_line_has_its_busy_share_and_mean_requests_in_flight():
    before = DiskReading(reads=10, read_bytes=1000, write_bytes=0, busy_s=1.0, waited_s=2.0)
    after = DiskReading(reads=30, read_bytes=5000, write_bytes=512, busy_s=2.0, waited_s=10.0)
    line = system_line(
        CounterReading(at_s=0.0, disks={"sda": before}), CounterReading(at_s=2.0, disks={"sda": after, "sdb": after})
    )
    assert line.disks == (
        DiskLoad(name="sda", read_bytes_s=2000.0, write_bytes_s=256.0, reads_s=10.0, busy=0.5, in_flight=4.0),
    )


def test_idle_loop_devices_are_left_out():
    idle, then, now = DiskReading(reads=1), DiskReading(reads=1), DiskReading(reads=3)
    line = system_line(
        CounterReading(at_s=0.0, disks={"loop0": idle, "loop1": then, "sda": idle}),
        CounterReading(at_s=1.0, disks={"loop0": idle, "loop1": now, "sda": idle}),
    )
    assert [disk.name for disk in line.disks] == ["loop1", "sda"]


def test_a_counter_that_went_backwards_gives_0():
    line = system_line(
        CounterReading(at_s=0.0, network_bytes=2**32, disks={"sda": DiskReading(busy_s=4e6)}),
        CounterReading(at_s=1.0, network_bytes=5, disks={"sda": DiskReading(busy_s=1.0)}),
    )
    assert (line.network_bytes_s, line.disks[0].busy) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("throttled_s", "throttled_periods", "periods", "share"),
    [
        (0.0, 0, 10, 0.0),
        (0.05, 10, 10, 0.05),  # briefly, at the end of every period
        (12.0, 5, 10, 0.5),  # sixteen cores at once, in every second period
        (0.3, 0, 0, 0.3),  # no period ended in the interval
    ],
)
def test_the_throttled_share_is_the_smaller_of_two_bounds(throttled_s, throttled_periods, periods, share):
    before = ThrottlingReading(throttled_s=100.0, throttled_periods=1000, periods=2000)
    after = ThrottlingReading(
        throttled_s=100.0 + throttled_s, throttled_periods=1000 + throttled_periods, periods=2000 + periods
    )
    line = system_line(
        CounterReading(at_s=0.0, throttling={"a": before}),
        CounterReading(at_s=1.0, throttling={"a": after, "b": after}),
    )
    assert line.throttled == pytest.approx(share)


def test_the_most_throttled_cgroup_is_reported():
    def reading(at_s, outer_s):
        quiet = ThrottlingReading(throttled_s=0.0, throttled_periods=0, periods=0)
        outer = ThrottlingReading(throttled_s=outer_s, throttled_periods=int(at_s), periods=int(at_s))
        return CounterReading(at_s=at_s, throttling={"inner": quiet, "outer": outer})

    assert system_line(reading(0.0, 0.0), reading(1.0, 0.5)).throttled == 0.5


def test_pressure_is_a_share_of_the_interval():
    line = system_line(
        CounterReading(at_s=0.0, pressure_s={"cpu": 5.0}), CounterReading(at_s=2.0, pressure_s={"cpu": 6.0, "io": 1.0})
    )
    assert line.pressure == {"cpu": 0.5}


def test_a_sample_needs_two_readings_at_different_times():
    clock = FakeClock()
    system = SystemSampler(clock.now, lambda line: None, dict)
    assert system.sample() is None
    assert system.sample() is None
    clock.advance(2.0)
    line = system.sample()
    assert (line.at_s, line.seconds) == (2.0, 2.0)
    assert line.processes[0].worker is None
    assert line.processes[0].memory_bytes > 1 << 20
    assert line.memory_free_bytes > 0
    assert line.cpu >= 0


@linux
def test_a_sample_is_made_even_if_no_file_of_proc_can_be_read(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(processes, "read_holding_gil", refuse)
    monkeypatch.setattr(kernel_counters, "read_holding_gil", refuse)
    monkeypatch.setattr(kernel_counters, "_read_table", refuse)
    clock = FakeClock()
    system = SystemSampler(clock.now, lambda line: None, dict)
    system.sample()
    clock.advance(1.0)
    line = system.sample()
    assert (line.processes, line.disks, line.pressure, line.throttled) == ((), (), {}, None)


def test_the_thread_puts_lines_until_it_is_stopped(monkeypatch):
    monkeypatch.setattr(sampler, "INTERVAL_S", 0.001)
    clock, lines, three_lines = FakeClock(), [], threading.Event()

    def now():
        clock.advance(1.0)
        return clock.now()

    def put(line):
        lines.append(line)
        if len(lines) == 3:
            three_lines.set()

    system = SystemSampler(now, put, dict)
    system.start()
    assert three_lines.wait(30)
    system.stop()
    count = len(lines)
    assert not system._thread.is_alive()
    assert [line.at_s for line in lines] == [float(at) for at in range(2, count + 2)]


def test_stopping_a_sampler_that_was_not_started_does_nothing():
    SystemSampler(lambda: 0.0, print, dict).stop()


def test_stop_returns_though_a_driver_hangs(monkeypatch):
    monkeypatch.setattr(sampler, "STOP_TIMEOUT_S", 0.01)
    called, release = threading.Event(), threading.Event()

    def stuck():
        called.set()
        release.wait(60)
        return {}

    system = SystemSampler(lambda: 0.0, print, stuck)
    system.start()
    assert called.wait(30)
    stopping = threading.Thread(target=system.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()
    assert system._thread.is_alive()
    release.set()
    system._thread.join(30)


def test_an_error_ends_the_sampling_with_one_warning(monkeypatch, caplog):
    monkeypatch.setattr(sampler, "INTERVAL_S", 0.001)

    def broken():
        raise RuntimeError("no workers here")

    system = SystemSampler(lambda: 0.0, print, broken)
    system.start()
    system._thread.join(30)
    system.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "the system is no longer sampled: RuntimeError: no workers here"
    ]
