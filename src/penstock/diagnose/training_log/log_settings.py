"""The DataLoader settings of a logged run: given by the user, else found in the log, else unknown."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from penstock.diagnose.training_log.parsed_log import TrainingLog
from penstock.errors import SettingError

_VALUE = r"['\"]?(?:\s*[:=]\s*|\s+)['\"]?(\d{1,7})\b(?![.:/])"
_WORKERS = re.compile(
    rf"(?<![\w])(?:dataloader_|--)?(?:num[_-]workers|workers_per_gpu){_VALUE}"
    r"|(?:--workers[ =]|\bworkers[=:] ?)(\d{1,7})\b"
)
_PREFETCH = re.compile(rf"(?<![\w])(?:dataloader_|--)?prefetch[_-]factor{_VALUE}")
_BATCH = re.compile(rf"(?<![\w])(?:--)?batch[_-]size{_VALUE}|Total train batch size [^=]{{0,60}}= ([\d,]{{1,9}})")
_VALUES_MAX = 16
"""Distinct values kept per setting. A name with more values than this is not a setting."""


class SettingsScanner:
    """Collects num_workers, prefetch_factor and batch_size from command lines, namespaces and configurations in a log.

    Each list holds the distinct values in the order of the log.
    """

    def __init__(self) -> None:
        self.workers: list[int] = []
        self.prefetch_factors: list[int] = []
        self.batch_sizes: list[int] = []

    def scan(self, line: str) -> None:
        """Add the settings that the line names."""
        if "workers" in line:
            _add_values(self.workers, _WORKERS, line)
        if "prefetch" in line:
            _add_values(self.prefetch_factors, _PREFETCH, line)
        if "batch" in line:
            _add_values(self.batch_sizes, _BATCH, line)


def _add_values(values: list[int], pattern: re.Pattern[str], line: str) -> None:
    for found in pattern.finditer(line):
        value = int(next(group for group in found.groups() if group is not None).replace(",", ""))
        if value not in values and len(values) < _VALUES_MAX:
            values.append(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings that the diagnosis of a log uses."""

    workers: tuple[int, ...]
    """num_workers; several values where the log names several, because it does not say which one applied when."""
    prefetch_factor: int | None
    batch_size: int | None
    notes: tuple[str, ...]
    """Settings for which the log names several values."""


def resolve_settings(log: TrainingLog, workers: int | None, batch_size: int | None) -> LogSettings:
    """Return the user's values if given, else those of the log; the log's value counts only if it is the only one."""
    if workers is not None and workers < 0:
        raise SettingError(f"{workers} workers are impossible", advice="Give the num_workers of the run, 0 or more")
    if batch_size is not None and batch_size < 1:
        raise SettingError(
            f"a batch of {batch_size} samples is impossible", advice="Give the run's batch size, 1 or more"
        )
    named = {
        "num_workers": log.workers if workers is None else (),
        "prefetch_factor": log.prefetch_factors,
        "batch_size": log.batch_sizes if batch_size is None else (),
    }
    return LogSettings(
        workers=log.workers if workers is None else (workers,),
        prefetch_factor=log.prefetch_factors[0] if len(log.prefetch_factors) == 1 else None,
        batch_size=batch_size or _batch_size(log),
        notes=tuple(
            f"the log names more than one {name} ({', '.join(map(str, values))}): the setting may have changed during "
            "the log, or the values belong to different loaders"
            for name, values in named.items()
            if len(values) > 1
        ),
    )


def _batch_size(log: TrainingLog) -> int | None:
    if log.batch_sizes:
        return log.batch_sizes[0] if len(log.batch_sizes) == 1 else None
    samples = Counter(meter.samples for meter in log.meters if meter.samples is not None)
    return samples.most_common(1)[0][0] if samples else None
