"""HF Trainer's dictionaries, `{'loss': 0.5, …, 'epoch': 0.1}` and `{'train_runtime': …}`: rates, but no data times."""

from __future__ import annotations

import re

from penstock.diagnose.training_log.formats.numbers import NUMBER, clock, seconds
from penstock.diagnose.training_log.lines import Totals

NAME = "HF Trainer"
_FIELD = re.compile(rf"['\"](epoch|train_\w+)['\"]: *['\"]?({NUMBER})\b")
_TABLE = re.compile(r"^\s*(train_runtime|train_samples_per_second|train_steps_per_second) += +([\d:.]+)\s*$")


def parse(line: str) -> Totals | None:
    """One step of logging, or the totals at the end, as a dictionary or as rows of a table."""
    if "train_" in line and "=" in line:
        row = _TABLE.match(line)
        if row is not None:
            return _totals({row[1]: clock(row[2])})
    if "epoch" not in line or "{" not in line or ("loss" not in line and "train_runtime" not in line):
        return None
    found = {name: seconds(value) for name, value in _FIELD.findall(line)}
    return _totals(found) if found else None


def _totals(found: dict[str, float]) -> Totals:
    return Totals(
        epoch=found.get("epoch"),
        seconds=found.get("train_runtime"),
        steps_per_s=found.get("train_steps_per_second"),
        samples_per_s=found.get("train_samples_per_second"),
    )
