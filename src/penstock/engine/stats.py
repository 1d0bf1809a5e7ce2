"""Three numbers per hop: busy, starved, blocked. The hop that is neither starved nor blocked is the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop, in seconds summed over its workers or threads since the start. Subtract two to see a window."""

    name: str
    busy_s: float
    """Doing its work."""
    starved_s: float
    """Waiting for input."""
    blocked_s: float
    """Waiting for room to put its output."""

    def share(self) -> tuple[float, float, float]:
        """Busy, starved, blocked as parts of one."""
        total = self.busy_s + self.starved_s + self.blocked_s
        return (self.busy_s / total, self.starved_s / total, self.blocked_s / total) if total else (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine did since it started."""

    samples: int
    batches: int
    bytes_read: int
    reads: int
    reread_blocks: int
    """Blocks that had to leave the arena before all of their samples were used, and came again."""
    tasks: int
    worker_deaths: int
    read: Hop
    decode: Hop
    deliver: Hop
    """The training loop: busy while it has a batch, starved while it waits for one."""
    readers: int
    workers: int
    slabs: int
    arena_bytes: int
    arena_used_bytes: int

    def bottleneck(self) -> str:
        """The hop with the largest busy share."""
        return max((self.read, self.decode, self.deliver), key=lambda hop: hop.share()[0]).name
