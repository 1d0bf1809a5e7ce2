"""How fast a run with slow batches really was, over whole periods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from penstock.diagnose.logs.causes import Gain, gain_of
from penstock.diagnose.logs.lines import TrainLog
from penstock.diagnose.logs.rhythm import Beat, Rhythm


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """From the first slow batch to the last: so a slow batch and its fast ones are counted together."""

    beats: tuple[Beat, ...]
    batches: int
    elapsed_s: float
    lost_s: float
    """In slow batches."""
    estimated: bool
    """The log has no stamps: elapsed is what was lost plus the steps' own time."""

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / self.elapsed_s

    @property
    def share(self) -> float:
        """Of the time that was lost in slow batches."""
        return self.lost_s / self.elapsed_s

    @property
    def per_batch_s(self) -> list[float]:
        """Seconds per batch, beat by beat: 1 / rate, as it went."""
        return [(beat.seconds or 0.0) / beat.batches for beat in self.beats]

    def gain(self) -> Gain:
        """If no batch were slow."""
        return gain_of([beat.seconds or 0.0 for beat in self.beats], [beat.lost_s for beat in self.beats])


def pace(found: Rhythm, step_s: float | None) -> Pace | None:
    """By the stamps; without any, from what a step takes by itself; else not known."""
    beats: Sequence[Beat] = found.timed
    if not beats and step_s is not None:
        beats = [
            Beat(
                number=beat.number,
                batches=beat.batches,
                lost_s=beat.lost_s,
                seconds=beat.lost_s + beat.batches * step_s,
            )
            for beat in found.beats
        ]
    elapsed_s = sum(beat.seconds or 0.0 for beat in beats)
    if elapsed_s <= 0:
        return None
    return Pace(
        beats=tuple(beats),
        batches=sum(beat.batches for beat in beats),
        elapsed_s=elapsed_s,
        lost_s=sum(beat.lost_s for beat in beats),
        estimated=not found.timed,
    )


def own_step_s(log: TrainLog) -> float | None:
    """What a step takes by itself, as the log's phases or meters say: the usual one."""
    steps = [bar.step_s for bar in log.bars if bar.phases and bar.step_s is not None]
    steps = steps or [bar.own_s for bar in log.bars if bar.own_s is not None]
    steps = steps or [
        meter.time_s - meter.wait_s
        for meter in log.meters
        if meter.time_s is not None and meter.wait_s is not None and meter.time_s >= meter.wait_s
    ]
    return median(steps) if steps else None
