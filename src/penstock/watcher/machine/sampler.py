"""Samples the machine once a second: use of cores, disks, memory and GPUs, and what the run waits for.

Each `SystemLine` is the difference of two readings of `KernelCounters`. What the system does not report is left out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from penstock.recording.format import DiskLoad, ProcessLoad, SystemLine
from penstock.watcher.machine.kernel_counters import CounterReading, DiskReading, KernelCounters, ThrottlingReading
from penstock.watcher.machine.processes import ProcessReading, WorkersByPid

log = logging.getLogger("penstock")

INTERVAL_S = 1.0
STOP_TIMEOUT_S = 2.0
"""Seconds that `stop` waits for the thread: a driver that hangs must not keep the script from ending."""


def system_line(before: CounterReading, after: CounterReading) -> SystemLine:
    """Return the rates between two readings. A counter that went backwards (an overflow) gives 0."""
    seconds = after.at_s - before.at_s

    def rate(old: float, new: float) -> float:
        return max(0.0, new - old) / seconds

    cpu = rate(before.cpu_s, after.cpu_s)
    run_cpu = rate(_run_cpu_s(before), _run_cpu_s(after))
    return SystemLine(
        at_s=after.at_s,
        seconds=seconds,
        cpu=cpu,
        iowait=rate(before.iowait_s, after.iowait_s),
        steal=rate(before.steal_s, after.steal_s),
        load=after.load,
        others_cpu=max(0.0, cpu - run_cpu),  # the two are not read at exactly the same time
        processes=tuple(
            _process_load(before.processes.get(key, ProcessReading()), new, rate)
            for key, new in after.processes.items()
        ),
        disks=tuple(_disk_loads(before.disks, after.disks, rate)),
        memory_free_bytes=after.memory_free_bytes,
        memory_used_bytes=sum(process.memory_bytes for process in after.processes.values()),
        swap_used_bytes=after.swap_used_bytes,
        swapped_in_bytes_s=rate(before.swapped_in_bytes, after.swapped_in_bytes),
        major_faults_s=rate(before.major_faults, after.major_faults),
        throttled=max(
            (
                _throttled_share(before.throttling[name], new, rate)
                for name, new in after.throttling.items()
                if name in before.throttling
            ),
            default=None,
        ),
        pressure={
            name: rate(before.pressure_s[name], new)
            for name, new in after.pressure_s.items()
            if name in before.pressure_s
        },
        network_bytes_s=rate(before.network_bytes, after.network_bytes),
        gpus=after.gpus,
    )


_Rate = Callable[[float, float], float]


def _run_cpu_s(reading: CounterReading) -> float:
    return sum(process.cpu_s + process.children_cpu_s for process in reading.processes.values())


def _process_load(old: ProcessReading, new: ProcessReading, rate: _Rate) -> ProcessLoad:
    return ProcessLoad(
        worker=new.worker,
        loader=new.loader,
        cpu=rate(old.cpu_s, new.cpu_s),
        thread_cpu=(
            None if old.thread_cpu_s is None or new.thread_cpu_s is None else rate(old.thread_cpu_s, new.thread_cpu_s)
        ),
        queue=rate(old.queue_s, new.queue_s),
        cores=new.cores,
        memory_bytes=new.memory_bytes,
    )


def _disk_loads(before: Mapping[str, DiskReading], after: Mapping[str, DiskReading], rate: _Rate) -> Iterable[DiskLoad]:
    for name, new in after.items():
        old = before.get(name)
        if old is None or (old == new and name.startswith(("loop", "ram", "zram"))):
            continue
        yield DiskLoad(
            name=name,
            read_bytes_s=rate(old.read_bytes, new.read_bytes),
            write_bytes_s=rate(old.write_bytes, new.write_bytes),
            reads_s=rate(old.reads, new.reads),
            busy=rate(old.busy_s, new.busy_s),
            in_flight=rate(old.waited_s, new.waited_s),
        )


def _throttled_share(old: ThrottlingReading, new: ThrottlingReading, rate: _Rate) -> float:
    """Return the share of the time in which the cgroup was throttled: the smaller of two upper bounds.

    The seconds are too large because they are summed over cores. The periods are too large because a period counts as
    throttled even if it was throttled only at its end.
    """
    periods = new.periods - old.periods
    share = (new.throttled_periods - old.throttled_periods) / periods if periods > 0 else 1.0
    return min(rate(old.throttled_s, new.throttled_s), share)


class SystemSampler:
    """A thread that puts a `SystemLine` every second. Each one takes some milliseconds of CPU time."""

    def __init__(
        self, session_now: Callable[[], float], put: Callable[[SystemLine], None], workers: Callable[[], WorkersByPid]
    ) -> None:
        self._now = session_now
        self._put = put
        self._workers = workers
        self._counters = KernelCounters()
        self._last: CounterReading | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-system", daemon=True)

    def start(self) -> None:
        """Start the thread; it puts its first line a second later."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and join it, with a timeout."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def sample(self) -> SystemLine | None:
        """Return the line for the time since the last call; None for the first call, or if no time has passed."""
        before, after = self._last, self._counters.read(self._now(), self._workers())
        if before is not None and after.at_s <= before.at_s:
            return None
        self._last = after
        return None if before is None else system_line(before, after)

    def _run(self) -> None:
        try:
            self.sample()
            while not self._stopping.wait(INTERVAL_S):
                line = self.sample()
                if line is not None:
                    self._put(line)
        except Exception as error:
            log.warning("the system is no longer sampled: %s: %s", type(error).__name__, error)
