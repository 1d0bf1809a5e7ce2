"""After the run: what the storage under the workers' files gives one reader, and what it gives all of them.

Their times in the run cannot tell a full device from a long way: all of them read all the time. A second or two of
reading as they read, alone and together, can. It happens after the training, never beside it.
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
MOST_READERS = 16
LARGEST_READ = 1 << 20
"""What programs ask for at once arrives at a disk in pieces no larger than this."""
LEAST_FILE_BYTES = 4 << 10
MOST_FILES = 64
MOST_PLACES = 100_000
"""Of scattered reads: more than any disk answers within the budget."""
LEAST_READ_BYTES = 1 << 20
LEAST_WAITING = 0.2
"""Of the workers' time."""

ReadManner = Iterator[tuple[ColdFile, int]]
"""Of one reader: where it reads, one place after the other."""


def add_storage_recheck(record: Path, clock: Clock = SYSTEM_CLOCK) -> StorageLine | None:
    """Look at the storage under the files that a recorded run's workers read, and add what it gave to the recording.

    Only where workers read much and waited: elsewhere there is nothing to decide.
    """
    line = _look_for(load(record), clock)
    if line is not None:
        with open(record, "ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
    return line


def _look_for(recording: Recording, clock: Clock) -> StorageLine | None:
    read = Counter[int]()
    for fetch in recording.fetches:
        read[fetch.loader] += fetch.read_bytes
    for loader, total in read.most_common(1):
        mine = [fetch for fetch in recording.fetches if fetch.loader == loader]
        waited = sum(fetch.fetch_s - fetch.cpu_s - fetch.queue_s for fetch in mine)
        if total < LEAST_READ_BYTES or waited < LEAST_WAITING * sum(fetch.fetch_s for fetch in mine):
            return None
        reads = sum(fetch.reads for fetch in mine)
        workers = {fetch.worker for fetch in mine if fetch.worker >= 0}
        return recheck_storage(loader, _paths(recording, loader), total // max(1, reads), len(workers), clock=clock)
    return None


def _paths(recording: Recording, loader: int) -> list[str]:
    """Of all workers in turn, so that the first few are not one worker's."""
    lists = [
        [path for path in event.detail.get("paths", ()) if isinstance(path, str)]
        for event in recording.events
        if event.what == "files" and event.loader == loader
    ]
    turns = chain.from_iterable(zip_longest(*lists))
    return list(dict.fromkeys(path for path in turns if path is not None))[:MOST_FILES]


def recheck_storage(
    loader: int,
    paths: Sequence[str],
    read_bytes: int,
    readers: int,
    budget_s: float = BUDGET_S,
    clock: Clock = SYSTEM_CLOCK,
) -> StorageLine | None:
    """None where nothing can be read any more, or too little to tell."""
    readers = min(readers, MOST_READERS)
    length = max(ALIGNMENT, min(LARGEST_READ, read_bytes // ALIGNMENT * ALIGNMENT))
    with ExitStack() as stack:
        files, cold = _open(paths, stack)
        if not files or readers < 2:
            return None
        look = _FileReads(files, length, budget_s / 8, clock)
        row_alone, row_together = look.both(look.in_row, readers)
        random_alone, random_together = look.both(look.scattered, readers)
        return StorageLine(
            loader=loader,
            folder=str(Path(files[0].path).parent),
            readers=readers,
            read_bytes=length,
            sequential_alone=row_alone,
            sequential_together=row_together,
            random_alone=random_alone,
            random_together=random_together,
            cold=cold,
        )


def _open(paths: Sequence[str], stack: ExitStack) -> tuple[list[ColdFile], bool]:
    files, cold = [], True
    for path in paths:
        with suppress(OSError, ValueError):
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would keep us waiting
                continue
            cold = drop_pages(Path(path)) and cold
            file = stack.enter_context(ColdFile(Path(path), ReadMethod.DROPPED))
            if file.size_bytes >= LEAST_FILE_BYTES:
                files.append(file)
    return files, cold


class _FileReads:
    def __init__(self, files: list[ColdFile], length: int, slice_s: float, clock: Clock) -> None:
        self.files = files
        self.length = length
        self.slice_s = slice_s
        self.clock = clock
        self.dice = random.Random(0)

    def both(self, way: Callable[[int], float], readers: int) -> tuple[float, float]:
        """Alone and together, then the other way round: who comes first may find a full bucket of credit."""
        rates = [way(count) for count in (1, readers, readers, 1)]
        return (rates[0] + rates[3]) / 2, (rates[1] + rates[2]) / 2

    def in_row(self, readers: int) -> float:
        """Each reader goes through files of its own, or, where there are too few, through a stretch of one."""
        ways: list[ReadManner]
        if len(self.files) >= readers:
            ways = [
                ((file, at) for file in self.files[n::readers] for at in self._places(file)) for n in range(readers)
            ]
        else:
            ways = [self._stretch(n, readers) for n in range(readers)]
        return self._rate(ways, scattered=False)

    def scattered(self, readers: int) -> float:
        """At random places of all files."""
        most = max(1, MOST_PLACES // len(self.files))
        places = [
            (file, at)
            for file in self.files
            for at in self.dice.sample(self._places(file), min(most, len(self._places(file))))
        ]
        self.dice.shuffle(places)
        return self._rate([iter(places[n::readers]) for n in range(readers)], scattered=True)

    def _stretch(self, reader: int, readers: int) -> ReadManner:
        """Of the file that the reader shares with others."""
        which, number = reader % len(self.files), reader // len(self.files)
        sharers = len(range(which, readers, len(self.files)))
        places = self._places(self.files[which])
        mine = places[len(places) * number // sharers : len(places) * (number + 1) // sharers]
        return ((self.files[which], at) for at in mine)

    def _places(self, file: ColdFile) -> range:
        return range(0, max(1, file.size_bytes - self.length + 1), self.length)

    def _rate(self, ways: Sequence[ReadManner], *, scattered: bool) -> float:
        for file in self.files:
            file.drop(random=scattered)
        self._stand_in_line()
        stop = self.clock.now() + self.slice_s
        begin = self.clock.now()
        with ThreadPoolExecutor(len(ways)) as pool:
            total = sum(pool.map(lambda way: self._read(way, stop), ways))
        return total / max(self.clock.now() - begin, 1e-9)

    def _stand_in_line(self) -> None:
        """One read that does not count: behind all that was read ahead before and may still be queued at a slow device.

        At the end of a file, where nothing follows that would be read ahead again.
        """
        last = self.files[-1]
        with mmap.mmap(-1, self.length) as buffer, suppress(OSError):
            last.read_into(buffer, self._places(last)[-1], self.length)

    def _read(self, way: ReadManner, stop: float) -> int:
        got = 0
        with mmap.mmap(-1, self.length) as buffer:
            for file, at in way:
                with suppress(OSError):
                    got += file.read_into(buffer, at, self.length)
                if self.clock.now() >= stop:
                    break
        return got
