"""num_workers, prefetch_factor and batch_size where a log names them: a command line, a namespace, a configuration."""

from __future__ import annotations

import re

_VALUE = r"['\"]?(?:\s*[:=]\s*|\s+)['\"]?(\d{1,7})\b(?![.:/])"
_WORKERS = re.compile(
    rf"(?<![\w])(?:dataloader_|--)?(?:num[_-]workers|workers_per_gpu){_VALUE}"
    r"|(?:--workers[ =]|\bworkers[=:] ?)(\d{1,7})\b"
)
_PREFETCH = re.compile(rf"(?<![\w])(?:dataloader_|--)?prefetch[_-]factor{_VALUE}")
_BATCH = re.compile(rf"(?<![\w])(?:--)?batch[_-]size{_VALUE}|Total train batch size [^=]{{0,60}}= ([\d,]{{1,9}})")
_VALUES_MAX = 16
"""Distinct values kept per setting: more are no setting any longer."""


class Settings:
    """Every distinct value, in the order of the log."""

    def __init__(self) -> None:
        self.workers: list[int] = []
        self.prefetch_factors: list[int] = []
        self.batch_sizes: list[int] = []

    def look(self, line: str) -> None:
        """Take what this line names."""
        if "workers" in line:
            _add(self.workers, _WORKERS, line)
        if "prefetch" in line:
            _add(self.prefetch_factors, _PREFETCH, line)
        if "batch" in line:
            _add(self.batch_sizes, _BATCH, line)


def _add(values: list[int], pattern: re.Pattern[str], line: str) -> None:
    for found in pattern.finditer(line):
        value = int(next(group for group in found.groups() if group is not None).replace(",", ""))
        if value not in values and len(values) < _VALUES_MAX:
            values.append(value)
