"""The arena: one piece of shared memory for the encoded bytes of all blocks in use, with an allocator."""

from __future__ import annotations

from bisect import bisect_left, insort

from penstock.core.slab_layout import PAGE, round_up_to_page
from penstock.engine.shared_memory import SharedMemory


class Arena:
    """A first-fit allocator over a list of gaps. Blocks are few (hundreds) and large (MB), so the list stays short."""

    def __init__(self, size: int) -> None:
        size = round_up_to_page(size)
        self.memory = SharedMemory.create(size, "arena")
        self._gaps: list[tuple[int, int]] = [(0, size)]
        """(offset, size) of each free piece, in order."""
        self._allocated: dict[int, int] = {}
        """Size of each allocated piece, by offset."""
        self.used_bytes = 0

    @property
    def size(self) -> int:
        """Bytes in all, free or not."""
        return self.memory.size

    def allocate(self, length: int) -> int | None:
        """Return the page-aligned offset of `length` free bytes, which are allocated; None if there is no such gap."""
        need = max(PAGE, round_up_to_page(length))
        for index, (offset, size) in enumerate(self._gaps):
            if size >= need:
                self._gaps[index : index + 1] = [(offset + need, size - need)] if size > need else []
                self._allocated[offset] = need
                self.used_bytes += need
                return offset
        return None

    def free(self, offset: int) -> None:
        """Free a piece, and join it with the gaps beside it."""
        length = self._allocated.pop(offset)
        self.used_bytes -= length
        end = offset + length
        index = bisect_left(self._gaps, (offset, 0))
        if index < len(self._gaps) and self._gaps[index][0] == end:
            end += self._gaps.pop(index)[1]
        if index > 0 and sum(self._gaps[index - 1]) == offset:
            offset = self._gaps.pop(index - 1)[0]
        insort(self._gaps, (offset, end - offset))

    def close(self) -> None:
        """Release the memory."""
        self.memory.close()
