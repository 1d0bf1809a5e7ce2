"""How a memory budget is shared out: arena, slabs, workers. Pure arithmetic, and says what would be needed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.cgroups import free_bytes
from penstock.errors import SettingError

PROCESS_BYTES = 64 << 20
"""What a worker process holds for itself: interpreter, numpy, decoders, one sample in the making."""
LEAST_SLABS = 3
"""One in the training loop's hands, one complete, one being filled."""
SOME_SLABS = 8
"""As many as there is memory for up to this; beyond it, as many as fit into an eighth of the budget."""
MOST_SLABS = 64
"""One sample that takes fifty times as long as the others holds up so many small batches behind it."""
SHARE_OF_FREE = 4
"""Without a budget we take a quarter of what is free."""
LEAST_ARENA_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What a run would like to have."""

    slab_bytes: int
    block_bytes: int
    """A typical block."""
    largest_block_bytes: int
    blocks_in_use: int
    """As many as there are lanes, if the order is shuffled."""
    processes: int


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """What it gets."""

    slabs: int
    arena_bytes: int
    more_processes: int
    """That would still fit in."""


def share_memory(budget_bytes: int, demand: MemoryDemand) -> MemoryShares:
    """Slabs first as far as they are needed, then the arena, then more slabs."""
    for_workers = demand.processes * PROCESS_BYTES
    least_arena = max(LEAST_ARENA_BYTES, 2 * demand.largest_block_bytes)
    least = LEAST_SLABS * demand.slab_bytes + least_arena + for_workers
    if least > budget_bytes:
        raise SettingError(
            f"a memory budget of {budget_bytes >> 20} MiB is too small: {LEAST_SLABS} batches of "
            f"{demand.slab_bytes >> 20} MiB, {least_arena >> 20} MiB for blocks and {for_workers >> 20} MiB "
            f"for workers make {(least >> 20) + 1} MiB",
            stage="plan",
            advice="Give more memory, a smaller batch_size, or fewer workers",
        )
    wanted_arena = max(least_arena, 2 * demand.blocks_in_use * demand.block_bytes)
    arena = min(wanted_arena, budget_bytes - for_workers - LEAST_SLABS * demand.slab_bytes)
    fitting = (budget_bytes - for_workers - arena) // demand.slab_bytes
    slabs = min(fitting, MOST_SLABS, max(SOME_SLABS, budget_bytes // 8 // demand.slab_bytes))
    left = budget_bytes - for_workers - arena - slabs * demand.slab_bytes
    return MemoryShares(slabs, arena, left // PROCESS_BYTES)


def default_budget() -> int:
    """A quarter of what the machine, or our container, has free."""
    return free_bytes() // SHARE_OF_FREE
