"""`[SLOW BATCH #2950] 20.69s - …` and `[DATA LOAD] Recent 50 batches: avg=449.1ms, …`: hand-made loader reports."""

from __future__ import annotations

import re

from penstock.diagnose.training_log.formats.numbers import NUMBER, count, seconds
from penstock.diagnose.training_log.lines import SlowBatch, Window

NAME = "slow batches"
_UNITS_S = {"ms": 1e-3, "s": 1.0}
_SLOW = re.compile(rf"\[SLOW BATCH #(\d+)\] ({NUMBER}) ?(ms|s)\b(?: - ([\w .:/-]{{1,80}}))?")
_RECENT = re.compile(r"\[DATA LOAD\] Recent ([\d,]+) batches: ([^\n]*)")
_STATISTIC = re.compile(rf"\b(avg|mean|min|max|std)=({NUMBER}) ?(ms|s)\b")


def parse(line: str) -> SlowBatch | Window | None:
    """A slow batch, or the statistics of a window."""
    if "[SLOW BATCH" in line:
        return _slow(line)
    if "[DATA LOAD]" in line:
        return _window(line)
    return None


def _slow(line: str) -> SlowBatch | None:
    found = _SLOW.search(line)
    if found is None:
        return None
    number, waited, unit, label = found.groups()
    return SlowBatch(number=count(number), seconds=seconds(waited, _UNITS_S[unit]), label=(label or "").strip())


def _window(line: str) -> Window | None:
    found = _RECENT.search(line)
    if found is None:
        return None
    named = {name: seconds(value, _UNITS_S[unit]) for name, value, unit in _STATISTIC.findall(found[2])}
    mean = named.get("avg", named.get("mean"))
    if mean is None or not {"min", "max", "std"} <= named.keys():
        return None
    return Window(batches=count(found[1]), mean_s=mean, min_s=named["min"], max_s=named["max"], std_s=named["std"])
