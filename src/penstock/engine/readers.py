"""Reader threads: fetch blocks into the arena, as many at a time as the storage likes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.contracts import BlockSource
from penstock.core.slab_layout import round_up_to_page
from penstock.engine.shared_memory import SharedMemory


@dataclass(frozen=True, slots=True)
class FetchedBlock:
    """One block that has arrived, or the reason why not."""

    block: int
    bytes_read: int
    busy_s: float
    error: BaseException | None


class Readers:
    """A handful of threads around one queue. Reads leave the GIL, so threads are enough."""

    def __init__(self, supply: BlockSource, arena: SharedMemory, fetched: Callable[[FetchedBlock], None]) -> None:
        self._supply = supply
        self._arena = arena
        self._fetched = fetched
        self._requests: queue.SimpleQueue[tuple[int, int, int, int] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.count = 0
        """How many read at a time."""
        self._used_to = 0
        """Where the part of the arena ends that has been read into."""

    def resize(self, count: int) -> None:
        """Have that many read at a time; those that are too many end after what is requested already."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]  # up and down may go on for weeks
        while self.count < count:
            thread = threading.Thread(target=self._serve, name=f"penstock-reader-{self.count}", daemon=True)
            thread.start()
            self._threads.append(thread)
            self.count += 1
        while self.count > count:
            self._requests.put(None)
            self.count -= 1

    def request(self, block: int, start: int, length: int) -> None:
        """Fetch a block to that place."""
        fresh = max(start, self._used_to)
        self._used_to = max(self._used_to, round_up_to_page(start + length))
        self._requests.put((block, start, length, fresh))

    def stop(self) -> None:
        """Let every thread end after the read it is at."""
        self.resize(0)

    def join(self, timeout_s: float) -> None:
        """Wait for them, but not for ever: a read from a dead server cannot be interrupted."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is threading.current_thread():
                continue  # a finalizer may run anywhere
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            block, start, length, fresh = request
            begin = time.perf_counter()
            count = 0
            failure: BaseException | None = None
            try:
                self._arena.settle(fresh, round_up_to_page(start + length) - fresh)
                with self._arena.view[start : start + length] as into:
                    count = self._supply.read_block(block, into)
            except BaseException as error:  # a reader that ended in silence would be waited for without end
                failure = error
            self._fetched(FetchedBlock(block, count, time.perf_counter() - begin, failure))
