"""The arena: one shared memory for the compressed bytes of all blocks in use, handed out piece by piece."""

from __future__ import annotations

from bisect import bisect_left, insort

from penstock.core.slab_layout import PAGE, round_up_to_page
from penstock.engine.shared_memory import SharedMemory


class Arena:
    """First fit over a list of gaps. Blocks are few (hundreds) and large (MB), so the list stays short."""

    def __init__(self, size: int) -> None:
        size = round_up_to_page(size)
        self.memory = SharedMemory.create(size, "arena")
        self._gaps: list[tuple[int, int]] = [(0, size)]
        self._taken: dict[int, int] = {}
        self.used = 0
        """Bytes handed out."""

    @property
    def size(self) -> int:
        """All bytes, free or not."""
        return self.memory.size

    def take(self, length: int) -> int | None:
        """Where `length` bytes are free now, page-aligned; None if nowhere."""
        need = max(PAGE, round_up_to_page(length))
        for place, (start, size) in enumerate(self._gaps):
            if size >= need:
                self._gaps[place : place + 1] = [(start + need, size - need)] if size > need else []
                self._taken[start] = need
                self.used += need
                return start
        return None

    def give_back(self, start: int) -> None:
        """Free a piece, joining it with the gaps beside it."""
        length = self._taken.pop(start)
        self.used -= length
        end = start + length
        place = bisect_left(self._gaps, (start, 0))
        if place < len(self._gaps) and self._gaps[place][0] == end:
            end += self._gaps.pop(place)[1]
        if place > 0 and sum(self._gaps[place - 1]) == start:
            start = self._gaps.pop(place - 1)[0]
        insort(self._gaps, (start, end - start))

    def close(self) -> None:
        """Give the memory back."""
        self.memory.close()
