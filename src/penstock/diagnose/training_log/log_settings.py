"""The settings a diagnosis goes by: given by the user, else named in the log, else not known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock.diagnose.training_log.lines import TrainLog
from penstock.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is known, and what had to be left open."""

    workers: tuple[int, ...]
    """Several, where the log names several: which of them was in force, it does not say."""
    prefetch_factor: int | None
    batch_size: int | None
    notes: tuple[str, ...]


def told(log: TrainLog, workers: int | None, batch_size: int | None) -> Told:
    """A flag counts more than the log, a value only if it is the only one."""
    if workers is not None and workers < 0:
        raise SettingError(f"{workers} workers cannot be", advice="Give the num_workers of the run, 0 or more")
    if batch_size is not None and batch_size < 1:
        raise SettingError(f"a batch of {batch_size} samples cannot be", advice="Give the run's batch size, 1 or more")
    named = {
        "num_workers": log.workers if workers is None else (),
        "prefetch_factor": log.prefetch_factors,
        "batch_size": log.batch_sizes if batch_size is None else (),
    }
    return Told(
        workers=log.workers if workers is None else (workers,),
        prefetch_factor=log.prefetch_factors[0] if len(log.prefetch_factors) == 1 else None,
        batch_size=batch_size or _batch_size(log),
        notes=tuple(
            f"the log names more than one {name} ({', '.join(map(str, values))}): one of them may have been changed on "
            "the way, or they are of different loaders"
            for name, values in named.items()
            if len(values) > 1
        ),
    )


def _batch_size(log: TrainLog) -> int | None:
    if log.batch_sizes:
        return log.batch_sizes[0] if len(log.batch_sizes) == 1 else None
    samples = Counter(meter.samples for meter in log.meters if meter.samples is not None)
    return samples.most_common(1)[0][0] if samples else None
