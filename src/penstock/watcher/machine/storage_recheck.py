"""Measures the storage under the workers' files again after the run: throughput of one reader, and of all together.

A saturated device and a long latency give the same read times during the run, because all workers read all the time.
One or two seconds of similar reads, by one reader alone and by all together, distinguish them. They are made after the
training, so that they do not disturb it.
"""

from __future__ import annotations

import mmap
import os
import random
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import chain, zip_longest
from pathlib import Path

import msgspec

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.recording.format import StorageLine
from penstock.recording.reader import Recording, load
from penstock.storage.page_cache import ALIGNMENT, ColdFile, ReadMethod, drop_pages

BUDGET_S = 2.0
"""Seconds that all measurements take together."""
MAX_READERS = 16
MAX_READ_BYTES = 1 << 20
"""Larger reads of a program reach the disk in pieces of at most this size."""
MIN_FILE_BYTES = 4 << 10
"""Smaller files are not read."""
MAX_FILES = 64
MAX_RANDOM_READS = 100_000
"""Random reads that are drawn: more than any disk completes within the budget."""
MIN_TOTAL_BYTES = 1 << 20
"""A run whose workers read less than this is not measured."""
MIN_WAIT_SHARE = 0.2
"""A run whose workers waited for less than this share of their time is not measured."""

Reads = Iterator[tuple[ColdFile, int]]
"""The file and offset of each read of one reader, in order."""


def add_storage_recheck(record: Path, clock: Clock = SYSTEM_CLOCK) -> StorageLine | None:
    """Measure the storage under the files that the workers of a run read, and append the result to its recording.

    Nothing is measured unless workers read much and waited long: otherwise the storage is not the cause of a stall.
    """
    line = _recheck_recording(load(record), clock)
    if line is not None:
        with open(record, "ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
    return line


def _recheck_recording(recording: Recording, clock: Clock) -> StorageLine | None:
    """Measure the files of the loader whose workers read most."""
    bytes_read = Counter[int]()
    for fetch in recording.fetches:
        bytes_read[fetch.loader] += fetch.read_bytes
    for loader, total in bytes_read.most_common(1):
        fetches = [fetch for fetch in recording.fetches if fetch.loader == loader]
        waited = sum(fetch.fetch_s - fetch.cpu_s - fetch.queue_s for fetch in fetches)
        if total < MIN_TOTAL_BYTES or waited < MIN_WAIT_SHARE * sum(fetch.fetch_s for fetch in fetches):
            return None
        reads = sum(fetch.reads for fetch in fetches)
        workers = {fetch.worker for fetch in fetches if fetch.worker >= 0}
        return recheck_storage(loader, _paths(recording, loader), total // max(1, reads), len(workers), clock=clock)
    return None


def _paths(recording: Recording, loader: int) -> list[str]:
    """Return the paths of all workers in turn, so that the first ones do not all come from one worker."""
    lists = [
        [path for path in event.detail.get("paths", ()) if isinstance(path, str)]
        for event in recording.events
        if event.what == "files" and event.loader == loader
    ]
    in_turn = chain.from_iterable(zip_longest(*lists))
    return list(dict.fromkeys(path for path in in_turn if path is not None))[:MAX_FILES]


def recheck_storage(
    loader: int,
    paths: Sequence[str],
    read_bytes: int,
    readers: int,
    budget_s: float = BUDGET_S,
    clock: Clock = SYSTEM_CLOCK,
) -> StorageLine | None:
    """Return the throughput for reads of about that size; None if no file can be read, or for fewer than 2 readers."""
    readers = min(readers, MAX_READERS)
    length = max(ALIGNMENT, min(MAX_READ_BYTES, read_bytes // ALIGNMENT * ALIGNMENT))
    with ExitStack() as stack:
        files, cold = _open(paths, stack)
        if not files or readers < 2:
            return None
        benchmark = _ReadBenchmark(files, length, budget_s / 8, clock)
        sequential_alone, sequential_together = benchmark.alone_and_together(benchmark.sequential_rate, readers)
        random_alone, random_together = benchmark.alone_and_together(benchmark.random_rate, readers)
        return StorageLine(
            loader=loader,
            folder=str(Path(files[0].path).parent),
            readers=readers,
            read_bytes=length,
            sequential_alone=sequential_alone,
            sequential_together=sequential_together,
            random_alone=random_alone,
            random_together=random_together,
            cold=cold,
        )


def _open(paths: Sequence[str], stack: ExitStack) -> tuple[list[ColdFile], bool]:
    """Open the files that can be read; return them, and whether their pages were dropped from the page cache."""
    files, cold = [], True
    for path in paths:
        with suppress(OSError, ValueError):
            if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
                continue
            cold = drop_pages(Path(path)) and cold
            file = stack.enter_context(ColdFile(Path(path), ReadMethod.DROPPED))
            if file.size_bytes >= MIN_FILE_BYTES:
                files.append(file)
    return files, cold


class _ReadBenchmark:
    """Measures reads of one length from some files. Each measurement takes `slice_s` seconds."""

    def __init__(self, files: list[ColdFile], length: int, slice_s: float, clock: Clock) -> None:
        self.files = files
        self.length = length
        self.slice_s = slice_s
        self.clock = clock
        self.rng = random.Random(0)

    def alone_and_together(self, pattern: Callable[[int], float], readers: int) -> tuple[float, float]:
        """Return the bytes/s of one reader and of all readers, each measured twice.

        The second time the order is reversed: storage with burst credits favours what is measured first.
        """
        rates = [pattern(count) for count in (1, readers, readers, 1)]
        return (rates[0] + rates[3]) / 2, (rates[1] + rates[2]) / 2

    def sequential_rate(self, readers: int) -> float:
        """Measure readers that each read files of their own or, if there are too few, a contiguous range of a file."""
        reads: list[Reads]
        if len(self.files) >= readers:
            reads = [
                ((file, at) for file in self.files[n::readers] for at in self._offsets(file)) for n in range(readers)
            ]
        else:
            reads = [self._range_of_shared_file(n, readers) for n in range(readers)]
        return self._rate(reads, random_access=False)

    def random_rate(self, readers: int) -> float:
        """Measure reads at random offsets of all files."""
        max_per_file = max(1, MAX_RANDOM_READS // len(self.files))
        places = [
            (file, at)
            for file in self.files
            for at in self.rng.sample(self._offsets(file), min(max_per_file, len(self._offsets(file))))
        ]
        self.rng.shuffle(places)
        return self._rate([iter(places[n::readers]) for n in range(readers)], random_access=True)

    def _range_of_shared_file(self, reader: int, readers: int) -> Reads:
        """Return the reads of one of several readers that divide a file between them."""
        file_index, number = reader % len(self.files), reader // len(self.files)
        sharers = len(range(file_index, readers, len(self.files)))
        file = self.files[file_index]
        offsets = self._offsets(file)
        own = offsets[len(offsets) * number // sharers : len(offsets) * (number + 1) // sharers]
        return ((file, at) for at in own)

    def _offsets(self, file: ColdFile) -> range:
        return range(0, max(1, file.size_bytes - self.length + 1), self.length)

    def _rate(self, reads: Sequence[Reads], *, random_access: bool) -> float:
        """Return the bytes/s of one thread per reader."""
        for file in self.files:
            file.drop(random=random_access)
        self._wait_for_readahead()
        stop = self.clock.now() + self.slice_s
        start = self.clock.now()
        with ThreadPoolExecutor(len(reads)) as pool:
            total = sum(pool.map(lambda each: self._read(each, stop), reads))
        return total / max(self.clock.now() - start, 1e-9)

    def _wait_for_readahead(self) -> None:
        """Make one read that is not counted: it waits for earlier readahead that a slow device has still queued.

        It reads the end of a file, after which there is nothing that would be read ahead again.
        """
        last = self.files[-1]
        with mmap.mmap(-1, self.length) as buffer, suppress(OSError):
            last.read_into(buffer, self._offsets(last)[-1], self.length)

    def _read(self, reads: Reads, stop: float) -> int:
        """Make the reads until the time `stop`; return the bytes read."""
        total = 0
        with mmap.mmap(-1, self.length) as buffer:
            for file, at in reads:
                with suppress(OSError):
                    total += file.read_into(buffer, at, self.length)
                if self.clock.now() >= stop:
                    break
        return total
