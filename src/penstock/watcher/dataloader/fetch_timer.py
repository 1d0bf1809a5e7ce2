"""Times one fetch of torch's DataLoader, on the thread that makes the batch, without wrapping the user's code.

torch's fetchers read their attributes in a fixed order: `dataset` (or `dataset_iter`) before every sample, and
`collate_fn` before collating. `TimedAttribute` replaces these attributes and notes the time of each read, which is the
time at which a sample or the collating starts. Tracebacks of the user's errors therefore show no frame of Penstock.

This module imports the standard library only, because it also runs in torch's worker processes.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import deque
from typing import Any

from penstock.watcher.machine.procfs import ProcFile
from penstock.watcher.stack_sampler import StackSampler

RECENT_PATHS = 64
"""Number of opened files whose paths are kept."""


class FetchTimer:
    """Times the fetches of one thread: `start`, then `mark_sample` and `mark_collate` while it runs, then `finish`."""

    def __init__(self, dataset: object, stack_sampler: StackSampler) -> None:
        """Make a timer for the calling thread.

        Reads and CPU time of threads that the dataset starts are not counted. The counters of the whole process
        include them, but they also include the reads with which torch sends a batch.
        """
        self.dataset = dataset
        self.files_opened = 0
        """Files opened so far. An audit hook counts them in workers; it stays 0 in the main process."""
        self.recent_paths: deque[str] = deque(maxlen=RECENT_PATHS)
        """Paths of the files opened last."""
        self.gc_s = 0.0
        """Seconds in full garbage collections so far, if `on_gc` is in `gc.callbacks`."""
        self.stack_sampler = stack_sampler
        self._fetches_whole_batches = inspect.getattr_static(dataset, "__getitems__", None) is not None
        thread = f"/proc/self/task/{threading.get_native_id()}"
        self._io = ProcFile(f"{thread}/io")
        self._schedstat = ProcFile(f"{thread}/schedstat")
        self._own_bytes = self._own_reads = 0
        """Bytes and calls of this timer's own reads from /proc, which the kernel counts as well."""
        self._collate_started_at: float | None = None
        self._gc_started_at: float | None = None
        self._sample_started_at: float | None = None
        self._samples_started = 0
        self._slowest_s = 0.0

    def start(self) -> None:
        """Start to time a fetch."""
        self._collate_started_at = self._sample_started_at = None
        self._samples_started = 0
        self._slowest_s = 0.0
        self.stack_sampler.resume()
        self._files_opened_before = self.files_opened
        self._gc_before_s = self.gc_s
        self._reads_before = self._read_counters()
        self._runqueue_before_ns = self._runqueue_ns()
        self._cpu_before_s = time.thread_time()
        self.started_at = time.perf_counter()

    def mark_sample(self) -> None:
        """Note that the previous sample is complete and the next one starts."""
        if self._collate_started_at is not None:  # torchdata reads the attribute once more, for its state
            return
        now = time.perf_counter()
        if self._sample_started_at is not None and now - self._sample_started_at > self._slowest_s:
            self._slowest_s = now - self._sample_started_at
        self._sample_started_at = now
        self._samples_started += 1

    def mark_collate(self, *, exhausted: bool) -> None:
        """Note that the last sample is complete; `exhausted`: an iterable dataset ended instead of giving it."""
        self.mark_sample()
        self._collate_started_at = self._sample_started_at
        self._samples_started -= 1 + exhausted

    def on_gc(self, phase: str, info: dict[str, int]) -> None:
        """Time the full collections, as one of `gc.callbacks`. Collections of young generations are short."""
        if info["generation"] == 2:
            now = time.perf_counter()
            if phase == "start":
                self._gc_started_at = now
            elif self._gc_started_at is not None:
                self.gc_s += now - self._gc_started_at
                self._gc_started_at = None

    def finish(self, samples: int | None) -> dict[str, float]:
        """End the fetch and return the measured fields of its `FetchLine`.

        `samples` is the number of samples requested; None for an iterable dataset, whose samples are counted.
        """
        ended_at = time.perf_counter()
        cpu_s = time.thread_time() - self._cpu_before_s
        queue_ns = self._runqueue_ns() - self._runqueue_before_ns
        self.stack_sampler.pause()
        one_by_one = not self._fetches_whole_batches and (samples is None or self._samples_started >= samples)
        before = self._reads_before
        read_bytes, reads, device_bytes = (new - old for new, old in zip(self._read_counters(), before, strict=True))
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
        """Return the nanoseconds in which this thread was runnable but waited for a core, since its start."""
        fields = self._read_proc(self._schedstat).split()
        return int(fields[1]) if len(fields) > 1 else 0

    def _read_counters(self) -> tuple[int, int, int]:
        """Return the bytes of read calls, their number, and the bytes from a device, without this timer's own reads."""
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
    """A descriptor in the place of a fetcher's attribute: it marks each read on the timer and returns the value."""

    def __init__(self, name: str, timer: FetchTimer) -> None:
        self._name = name
        self._timer = timer

    def __get__(self, fetcher: Any, owner: type | None = None) -> Any:
        if fetcher is None:
            return self
        attributes = fetcher.__dict__
        try:
            value = attributes[self._name]
        except KeyError:
            raise AttributeError(self._name) from None
        timer = self._timer
        if attributes.get("dataset") is timer.dataset:  # not the fetcher of a loader inside the dataset
            if self._name == "collate_fn":
                timer.mark_collate(exhausted=attributes.get("ended", False))
            else:
                timer.mark_sample()
        return value

    def __set__(self, fetcher: Any, value: Any) -> None:
        fetcher.__dict__[self._name] = value


def timed_attributes(fetcher_class: type, timer: FetchTimer) -> dict[str, TimedAttribute]:
    """Return the attributes to set on one of torch's fetcher classes, or on a subclass of it."""
    samples = "dataset_iter" if "Iterable" in fetcher_class.__name__ else "dataset"
    return {name: TimedAttribute(name, timer) for name in (samples, "collate_fn")}


def requested_samples(index: object, *, iterable: bool) -> int | None:
    """Return the number of samples that a task requests; None for an iterable dataset, which may end earlier."""
    if iterable:
        return None
    index = getattr(index, "sample_index", index)  # the tasks of penstock.DataLoader carry the index with other things
    return len(index) if isinstance(index, list | tuple) else 1
