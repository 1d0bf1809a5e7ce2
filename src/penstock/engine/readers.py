"""Reader threads: they read blocks into the arena, as many at a time as the autotuner allows."""

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
    """A block that has been read into the arena, or the error that prevented it."""

    block: int
    bytes_read: int
    """Bytes read from storage."""
    busy_s: float
    """Seconds that the read took."""
    error: BaseException | None


class Readers:
    """A few threads that share one queue of requests. Reading releases the GIL, so threads suffice."""

    def __init__(
        self, block_source: BlockSource, arena: SharedMemory, on_fetched: Callable[[FetchedBlock], None]
    ) -> None:
        self._block_source = block_source
        self._arena = arena
        self._on_fetched = on_fetched
        self._requests: queue.SimpleQueue[tuple[int, int, int, int] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.count = 0
        """How many threads read at a time."""
        self._touched_bytes = 0
        """Size of the first part of the arena, into which something has been read before."""

    def resize(self, count: int) -> None:
        """Change the number of threads. Surplus threads end after the requests that are already in the queue."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]  # the tuner may go on for weeks
        while self.count < count:
            thread = threading.Thread(target=self._serve, name=f"penstock-reader-{self.count}", daemon=True)
            thread.start()
            self._threads.append(thread)
            self.count += 1
        while self.count > count:
            self._requests.put(None)
            self.count -= 1

    def request(self, block: int, start: int, length: int) -> None:
        """Let a thread read the block to that offset of the arena."""
        untouched = max(start, self._touched_bytes)
        self._touched_bytes = max(self._touched_bytes, round_up_to_page(start + length))
        self._requests.put((block, start, length, untouched))

    def stop(self) -> None:
        """Let every thread end after its current read."""
        self.resize(0)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads until the timeout: a read from a dead server cannot be interrupted."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is threading.current_thread():
                continue  # a finalizer may run in any thread
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            block, start, length, untouched = request
            begin = time.perf_counter()
            count = 0
            failure: BaseException | None = None
            try:
                self._arena.prefault(untouched, round_up_to_page(start + length) - untouched)
                with self._arena.view[start : start + length] as into:
                    count = self._block_source.read_block(block, into)
            except BaseException as error:  # reported, since otherwise the scheduler would wait for this block forever
                failure = error
            self._on_fetched(FetchedBlock(block, count, time.perf_counter() - begin, failure))
