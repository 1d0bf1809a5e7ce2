"""Counters of a loader and its engine since their start. The difference of two describes the time between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from penstock.core.hops import Hop


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Sums since the start of the engine, and the current values of its knobs."""

    read: Hop = field(default_factory=lambda: Hop("read"))
    decode: Hop = field(default_factory=lambda: Hop("decode"))
    waited_s: float = 0.0
    """Seconds the training loop waited for a batch."""
    decoding_s: float = 0.0
    """Seconds the workers spent on tasks, by their own measurement."""
    reads: int = 0
    bytes_read: int = 0
    rereads: int = 0
    """Blocks that were evicted from the arena and read again; with more memory this would not happen."""
    tasks: int = 0
    samples: int = 0
    batches: int = 0
    worker_deaths: int = 0
    readers: int = 0
    workers: int = 0
    lookahead: int = 0
    """Batches being made or ready, ahead of the one the training loop has."""
    task_s: float = 0.0
    arena_used_bytes: int = 0
    ready_batches: int = 0
    changes: tuple[str, ...] = ()
    """The last hundred changes that the autotuner made, with their reasons."""


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """The GPU's time between steps, by its own clock. Sums since the start of the engine."""

    copying_s: float = 0.0
    """Seconds of copying batches to the GPU, including decoding on the GPU."""
    exposed_s: float = 0.0
    """Seconds of copying and transforming that the training's stream waited for: not hidden behind a step."""
    stalled_s: float = 0.0
    """Seconds the GPU had no work of the training, because the next batch was not there yet, for whatever reason."""

    def since(self, earlier: Self) -> GpuTimes:
        """Return what happened since the earlier measurement; sums that went down were restarted in between."""
        if earlier.copying_s > self.copying_s:
            return self
        return GpuTimes(
            self.copying_s - earlier.copying_s,
            self.exposed_s - earlier.exposed_s,
            self.stalled_s - earlier.stalled_s,
        )


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """The result of `loader.stats()`: the hops that data passes through, and the engine."""

    epoch: int
    position: int
    """Samples of the epoch that have been delivered, over all ranks."""
    epoch_samples: int
    """Samples of a whole epoch, over all ranks."""
    samples: int
    """Samples delivered on this rank since the loader was made."""
    batches: int
    bad: int
    """Samples that were skipped or replaced in this epoch, and those that were left out because they lack a part."""
    deliver: Hop
    """Delivery: from a complete slab to the batch that the training loop gets, including the copy to the device."""
    step: Hop
    """The training loop: busy with its step, starved while it waited for a batch."""
    engine: EngineStats
    """Since the workers were last started; leaving an epoch early stops them."""
    gpu_times: GpuTimes | None = None
    """Since the workers were last started, too; None where batches stay on the CPU."""
    filtered: int = 0
    """Samples of the shards that the `filter` has rejected, over all ranks. They are in no epoch."""

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops in the order in which data passes through them."""
        return self.engine.read, self.engine.decode, self.deliver, self.step

    @property
    def bottleneck(self) -> str:
        """Name of the hop that waited least for others."""
        return max(self.hops, key=lambda hop: hop.busy).name

    @property
    def samples_per_s(self) -> float:
        """Samples per second over all epochs, including the time of the training steps."""
        return self.samples / self.step.total_s if self.step.total_s > 0 else 0.0
