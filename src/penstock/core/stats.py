"""What a loader has done so far, as numbers that somebody else can read: subtract two of them for a window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from penstock.core.hops import Hop


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Sums since the engine's start, and how its knobs stand."""

    read: Hop = field(default_factory=lambda: Hop("read"))
    decode: Hop = field(default_factory=lambda: Hop("decode"))
    waited_s: float = 0.0
    """By the training loop, for a batch."""
    decoding_s: float = 0.0
    """Of the workers, by their own count."""
    reads: int = 0
    bytes_read: int = 0
    rereads: int = 0
    """Blocks that had to leave the arena and were read again: more memory would have saved them."""
    tasks: int = 0
    samples: int = 0
    batches: int = 0
    worker_deaths: int = 0
    readers: int = 0
    workers: int = 0
    lookahead: int = 0
    """Batches in the making or ready, ahead of the one the training loop has."""
    task_s: float = 0.0
    arena_used_bytes: int = 0
    ready_batches: int = 0
    changes: tuple[str, ...] = ()
    """What was turned while running and why, the last hundred."""


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """Where a GPU's time goes between steps, on its own clock. Sums since the start."""

    copying_s: float = 0.0
    """Batches on their way: the copy itself, decoding on the card included."""
    exposed_s: float = 0.0
    """Of copying and finishing, what the training's stream had to wait for: not hidden behind a step."""
    stalled_s: float = 0.0
    """The card had nothing to do for the training, because the next batch was not there yet, for whatever reason."""

    def since(self, earlier: Self) -> GpuTimes:
        """What happened between two looks; a sum that went down was begun anew."""
        if earlier.copying_s > self.copying_s:
            return self
        return GpuTimes(
            self.copying_s - earlier.copying_s,
            self.exposed_s - earlier.exposed_s,
            self.stalled_s - earlier.stalled_s,
        )


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """`loader.stats()`: the hops of the data's way, and the engine behind them."""

    epoch: int
    position: int
    """Samples of the epoch that are delivered, over all ranks."""
    epoch_samples: int
    """All there are in an epoch."""
    samples: int
    """Delivered here since the loader was made."""
    batches: int
    bad: int
    """Samples that were skipped or replaced in this pass."""
    deliver: Hop
    """From a finished slab to what the training loop gets, copy to the device included."""
    step: Hop
    """The training loop: busy with its own work, starved while it waited for a batch."""
    engine: EngineStats
    """Since its workers were last started: leaving a pass early stops them."""
    gpu_times: GpuTimes | None = None
    """Since then too; None where batches stay on the CPU."""

    @property
    def hops(self) -> tuple[Hop, ...]:
        """In the order of the data's way."""
        return self.engine.read, self.engine.decode, self.deliver, self.step

    @property
    def bottleneck(self) -> str:
        """The hop that waited least for others."""
        return max(self.hops, key=lambda hop: hop.busy).name

    @property
    def samples_per_s(self) -> float:
        """Over the time of all passes, the training loop's own work included."""
        return self.samples / self.step.total_s if self.step.total_s > 0 else 0.0
