"""The machine once a second: who uses the cores, the disks, the memory, and who is held back by what.

The system keeps sums since its start (`sums`), and `between` two readings of them lies a `SystemLine` line.
What a system does not tell is left out; nothing here raises.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from penstock.recording.format import DiskLoad, ProcessLoad, SystemLine
from penstock.watcher.machine.kernel_counters import CounterReading, DiskReading, KernelCounters, Throttling
from penstock.watcher.machine.processes import ProcessReading, Workers

log = logging.getLogger("penstock")

EVERY_S = 1.0
STOP_WAIT_S = 2.0
"""A driver that does not answer must not keep the script from ending."""


def between(before: CounterReading, after: CounterReading) -> SystemLine:
    """What happened from one reading to the next. A sum that went back (an overflow) counts as 0."""
    seconds = after.at_s - before.at_s

    def rate(then: float, now: float) -> float:
        return max(0.0, now - then) / seconds

    cpu = rate(before.cpu_s, after.cpu_s)
    run_cpu = rate(_run_cpu_s(before), _run_cpu_s(after))
    return SystemLine(
        at_s=after.at_s,
        seconds=seconds,
        cpu=cpu,
        iowait=rate(before.iowait_s, after.iowait_s),
        steal=rate(before.steal_s, after.steal_s),
        load=after.load,
        others_cpu=max(0.0, cpu - run_cpu),  # the two are read a moment apart
        processes=tuple(
            _process(before.processes.get(key, ProcessReading()), now, rate) for key, now in after.processes.items()
        ),
        disks=tuple(_disks(before.disks, after.disks, rate)),
        memory_free_bytes=after.memory_free_bytes,
        memory_used_bytes=sum(process.memory_bytes for process in after.processes.values()),
        swap_used_bytes=after.swap_used_bytes,
        swapped_in_bytes_s=rate(before.swapped_in_bytes, after.swapped_in_bytes),
        major_faults_s=rate(before.major_faults, after.major_faults),
        throttled=max(
            (
                _throttled(before.throttling[name], now, rate)
                for name, now in after.throttling.items()
                if name in before.throttling
            ),
            default=None,
        ),
        pressure={
            name: rate(before.pressure_s[name], now)
            for name, now in after.pressure_s.items()
            if name in before.pressure_s
        },
        network_bytes_s=rate(before.network_bytes, after.network_bytes),
        gpus=after.gpus,
    )


_Rate = Callable[[float, float], float]


def _run_cpu_s(reading: CounterReading) -> float:
    return sum(process.cpu_s + process.children_cpu_s for process in reading.processes.values())


def _process(then: ProcessReading, now: ProcessReading, rate: _Rate) -> ProcessLoad:
    return ProcessLoad(
        worker=now.worker,
        loader=now.loader,
        cpu=rate(then.cpu_s, now.cpu_s),
        thread_cpu=(
            None if then.thread_cpu_s is None or now.thread_cpu_s is None else rate(then.thread_cpu_s, now.thread_cpu_s)
        ),
        queue=rate(then.queue_s, now.queue_s),
        cores=now.cores,
        memory_bytes=now.memory_bytes,
    )


def _disks(before: Mapping[str, DiskReading], after: Mapping[str, DiskReading], rate: _Rate) -> Iterable[DiskLoad]:
    for name, now in after.items():
        then = before.get(name)
        if then is None or (then == now and name.startswith(("loop", "ram", "zram"))):
            continue
        yield DiskLoad(
            name=name,
            read_bytes_s=rate(then.read_bytes, now.read_bytes),
            write_bytes_s=rate(then.write_bytes, now.write_bytes),
            reads_s=rate(then.reads, now.reads),
            busy=rate(then.busy_s, now.busy_s),
            in_flight=rate(then.waited_s, now.waited_s),
        )


def _throttled(then: Throttling, now: Throttling, rate: _Rate) -> float:
    """Two numbers bound the share from above, and the smaller one is nearer.

    The time is summed over cores; a period counts as throttled even if it was only for its last moment.
    """
    periods = now.periods - then.periods
    share = (now.throttled_periods - then.throttled_periods) / periods if periods > 0 else 1.0
    return min(rate(then.throttled_s, now.throttled_s), share)


class SystemSampler:
    """Puts a `SystemLine` line every second, from a thread of its own; some milliseconds of CPU each."""

    def __init__(
        self, session_now: Callable[[], float], put: Callable[[SystemLine], None], workers: Callable[[], Workers]
    ) -> None:
        self._now = session_now
        self._put = put
        self._workers = workers
        self._sums = KernelCounters()
        self._last: CounterReading | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-system", daemon=True)

    def start(self) -> None:
        """Begin; the first line comes a second later."""
        self._thread.start()

    def stop(self) -> None:
        """No line after this."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_WAIT_S)

    def sample(self) -> SystemLine | None:
        """The time since the last call; None the first time, and where no time has passed."""
        before, after = self._last, self._sums.read(self._now(), self._workers())
        if before is not None and after.at_s <= before.at_s:
            return None
        self._last = after
        return None if before is None else between(before, after)

    def _run(self) -> None:
        try:
            self.sample()
            while not self._stopping.wait(EVERY_S):
                line = self.sample()
                if line is not None:
                    self._put(line)
        except Exception as error:
            log.warning("the system is no longer sampled: %s: %s", type(error).__name__, error)
