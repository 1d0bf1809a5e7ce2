"""What one fetch took, measured on the thread that makes it, without standing between torch and the user's code.

torch's fetchers read their attributes in a telling order: `dataset` (or `dataset_iter`) before every sample,
`collate_fn` before collating. So attributes that note the time when they are read (`Stamp`) tell where a sample begins
and ends; nothing of the user's is wrapped, and tracebacks of his errors show his frames and torch's only.

Standard library only: it also runs in torch's worker processes.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import deque
from typing import Any

from penstock.watcher.machine.procfs import ProcFile
from penstock.watcher.stack_sampler import StackSampler

Numbers = dict[str, float]

RECENT_PATHS = 64


class FetchTimer:
    """Times fetch after fetch. `begin`, stamps while it goes on, `end`."""

    def __init__(self, dataset: object, sampler: StackSampler) -> None:
        """For the calling thread. Reads and CPU of threads that the dataset starts itself are not counted.

        The process's own counters would have them, but also torch's: handing a batch over takes reads of its own.
        """
        self.dataset = dataset
        self.files_opened = 0
        """Files opened so far: an audit hook counts them, where there is one."""
        self.recent_paths: deque[str] = deque(maxlen=RECENT_PATHS)
        """The last of them."""
        self.gc_s = 0.0
        """In full collections so far: `collecting` hears of them, where it is told."""
        self.sampler = sampler
        self._fetches_whole_batches = inspect.getattr_static(dataset, "__getitems__", None) is not None
        thread = f"/proc/self/task/{threading.get_native_id()}"
        self._io = ProcFile(f"{thread}/io")
        self._schedstat = ProcFile(f"{thread}/schedstat")
        self._own_bytes = self._own_reads = 0
        self._collate_started_at: float | None = None
        self._gc_started_at: float | None = None
        self._sample_started_at: float | None = None
        self._samples_started = 0
        self._slowest_s = 0.0

    def start(self) -> None:
        """The fetch begins now."""
        self._collate_started_at = self._sample_started_at = None
        self._samples_started = 0
        self._slowest_s = 0.0
        self.sampler.resume()
        self._files_opened_before = self.files_opened
        self._gc_before_s = self.gc_s
        self._reads_before = self._reads()
        self._runqueue_before_ns = self._runqueue_ns()
        self._cpu_before_s = time.thread_time()
        self.started_at = time.perf_counter()

    def mark_sample(self) -> None:
        """The next sample begins, the last one is over."""
        if self._collate_started_at is not None:  # torchdata reads the same attributes once more, for its state
            return
        now = time.perf_counter()
        if self._sample_started_at is not None and now - self._sample_started_at > self._slowest_s:
            self._slowest_s = now - self._sample_started_at
        self._sample_started_at = now
        self._samples_started += 1

    def mark_collate(self, *, exhausted: bool) -> None:
        """The last sample is over; `ended`: it was the end of an iterable dataset that came in its place."""
        self.mark_sample()
        self._collate_started_at = self._sample_started_at
        self._samples_started -= 1 + exhausted

    def on_gc(self, when: str, facts: dict[str, int]) -> None:
        """For `gc.callbacks`. The young generations are left out: they are short, and many."""
        if facts["generation"] == 2:
            now = time.perf_counter()
            if when == "start":
                self._gc_started_at = now
            elif self._gc_started_at is not None:
                self.gc_s += now - self._gc_started_at
                self._gc_started_at = None

    def finish(self, samples: int | None) -> Numbers:
        """The fetch is over: the numbers of its line. `samples` is None where only counting tells (iterable)."""
        ended_at = time.perf_counter()
        cpu_s = time.thread_time() - self._cpu_before_s
        queue_ns = self._runqueue_ns() - self._runqueue_before_ns
        self.sampler.pause()
        one_by_one = not self._fetches_whole_batches and (samples is None or self._samples_started >= samples)
        before = self._reads_before
        read_bytes, reads, device_bytes = (now - then for now, then in zip(self._reads(), before, strict=True))
        return {
            "fetch_s": round(ended_at - self.started_at, 7),
            "collate_s": 0.0 if self._collate_started_at is None else round(ended_at - self._collate_started_at, 7),
            "cpu_s": round(cpu_s, 7),
            "queue_s": queue_ns / 1e9,
            "gc_s": round(self.gc_s - self._gc_before_s, 7),
            "samples": self._samples_started if samples is None else samples,
            "slowest_s": round(self._slowest_s, 7) if one_by_one else 0.0,
            "read_bytes": read_bytes,
            "device_bytes": device_bytes,
            "reads": reads,
            "opens": self.files_opened - self._files_opened_before,
        }

    def _runqueue_ns(self) -> int:
        """Time this thread was runnable without a core, since its start."""
        fields = self._read_proc(self._schedstat).split()
        return int(fields[1]) if len(fields) > 1 else 0

    def _reads(self) -> tuple[int, int, int]:
        """Bytes by read calls, read calls, bytes from a device; without our own."""
        own_bytes, own_reads = self._own_bytes, self._own_reads
        fields = dict(line.split(b": ") for line in self._read_proc(self._io).splitlines())
        if b"syscr" not in fields:
            return 0, 0, 0
        return int(fields[b"rchar"]) - own_bytes, int(fields[b"syscr"]) - own_reads, int(fields[b"read_bytes"])

    def _read_proc(self, file: ProcFile) -> bytes:
        text = file.read()
        self._own_bytes += len(text)
        self._own_reads += bool(text)
        return text


class TimedAttribute:
    """An attribute of a fetcher that notes the time when it is read, and is otherwise what it was."""

    def __init__(self, name: str, timer: FetchTimer) -> None:
        self._name = name
        self._timer = timer

    def __get__(self, fetcher: Any, owner: type | None = None) -> Any:
        if fetcher is None:
            return self
        values = fetcher.__dict__
        try:
            value = values[self._name]
        except KeyError:
            raise AttributeError(self._name) from None
        meter = self._timer
        if values.get("dataset") is meter.dataset:  # not the fetcher of a loader inside the dataset
            if self._name == "collate_fn":
                meter.mark_collate(exhausted=values.get("ended", False))
            else:
                meter.mark_sample()
        return value

    def __set__(self, fetcher: Any, value: Any) -> None:
        fetcher.__dict__[self._name] = value


def timed_attributes(fetcher_class: type, timer: FetchTimer) -> dict[str, TimedAttribute]:
    """The attributes to put on a class of torch's fetchers, or on a subclass."""
    samples = "dataset_iter" if "Iterable" in fetcher_class.__name__ else "dataset"
    return {name: TimedAttribute(name, timer) for name in (samples, "collate_fn")}


def requested_samples(index: object, *, iterable: bool) -> int | None:
    """Samples that a task asks for; None for an iterable dataset, which may end before."""
    if iterable:
        return None
    return len(index) if isinstance(index, list | tuple) else 1
