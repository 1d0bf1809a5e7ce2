"""The log formats: one function each, which parses a line, or returns None if the line is of another format.

A parse function raises ValueError where a line of its format contains an impossible time or count. `FORMATS` lists the
formats in the order in which they are tried; `UserPattern` is a format that the user defines by a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.diagnose.training_log.parsed_log import (
    ParsedLine,
    ProgressBar,
    RunSummary,
    SlowBatch,
    StepMeter,
    WaitStatistics,
)
from penstock.errors import SettingError

LineParser = Callable[[str], ParsedLine | None]

# -- numbers and timestamps ----------------------------------------------------------------------------------------

NUMBER = r"[-+]?(?:\d[\d,]{0,18}(?:\.\d{0,18})?(?:[eE][-+]?\d{1,4})?|\.\d{1,18}|nan|inf)"
"""Regular expression of a number. NaN and negative numbers match, so that they are counted as unusable.

It is bounded and can match a text only once, so that no line can make a pattern backtrack for long.
"""
_UNITS_S = {"ms": 1e-3, "s": 1.0}
_SECONDS_MAX = 1e9
"""Longer durations (30 years) are counted as unusable."""
_TIMESTAMP = re.compile(
    r"(?<![\d/-])(?:(\d{4})[-/])?(\d{2})[-/](\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,6}))?(?!\d)"
)
_TIMESTAMP_WITHIN_CHARS = 48
"""A timestamp must be in the first characters of a line; dates further on belong to the message."""


def _seconds(text: str, unit_s: float = 1.0) -> float:
    """Return a duration in seconds; raise ValueError unless it is finite and not negative."""
    value = float(text.replace(",", "")) * unit_s
    if not 0 <= value <= _SECONDS_MAX:
        raise ValueError(f"{value} is not a duration")
    return value


def _count(text: str) -> int:
    """Return an integer that may have thousands separators."""
    return int(text.replace(",", ""))


def _clock_seconds(text: str) -> float:
    """Return SS, MM:SS or H:MM:SS(.fff) in seconds."""
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + _seconds(part)
    return total


def parse_timestamp(line: str) -> float | None:
    """Return the timestamp at the head of a line in seconds; a date without a year is taken to be in 2000."""
    found = _TIMESTAMP.search(line, 0, _TIMESTAMP_WITHIN_CHARS)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction = found.groups(default="0")
    try:
        moment = datetime(int(year) or 2000, int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{fraction}")


# -- slow-batch reports --------------------------------------------------------------------------------------------

_SLOW = re.compile(rf"\[SLOW BATCH #(\d+)\] ({NUMBER}) ?(ms|s)\b(?: - ([\w .:/-]{{1,80}}))?")
_RECENT = re.compile(r"\[DATA LOAD\] Recent ([\d,]+) batches: ([^\n]*)")
_STATISTIC = re.compile(rf"\b(avg|mean|min|max|std)=({NUMBER}) ?(ms|s)\b")


def parse_slow_batch_report(line: str) -> SlowBatch | WaitStatistics | None:
    """Parse `[SLOW BATCH #2950] 20.69s - …` and `[DATA LOAD] Recent 50 batches: avg=449.1ms, …`.

    Hand-written training loops print these; the watcher's live lines have the same form.
    """
    if "[SLOW BATCH" in line:
        return _parse_slow_batch(line)
    if "[DATA LOAD]" in line:
        return _parse_wait_statistics(line)
    return None


def _parse_slow_batch(line: str) -> SlowBatch | None:
    found = _SLOW.search(line)
    if found is None:
        return None
    number, waited, unit, label = found.groups()
    return SlowBatch(number=_count(number), seconds=_seconds(waited, _UNITS_S[unit]), label=(label or "").strip())


def _parse_wait_statistics(line: str) -> WaitStatistics | None:
    found = _RECENT.search(line)
    if found is None:
        return None
    values = {name: _seconds(value, _UNITS_S[unit]) for name, value, unit in _STATISTIC.findall(found[2])}
    mean = values.get("avg", values.get("mean"))
    if mean is None or not {"min", "max", "std"} <= values.keys():
        return None
    return WaitStatistics(
        batches=_count(found[1]), mean_s=mean, min_s=values["min"], max_s=values["max"], std_s=values["std"]
    )


# -- timm ----------------------------------------------------------------------------------------------------------

_TIMM_POSITION = re.compile(r"(?:Train: *(\d+)|Epoch: *\[(\d+)\]) *\[ *(\d+)/ *(\d+)")
_TIMM_TIME = re.compile(rf"\bTime:? +({NUMBER})s?(?:, *({NUMBER})/s)? *\( *({NUMBER})s?(?:, *{NUMBER}/s)?\)")
_TIMM_DATA = re.compile(rf"\bData:? +({NUMBER}) *\( *({NUMBER})\)")
_SAMPLES_TOLERANCE = 0.02
"""Samples per step are rate × time, both rounded: the product is used if it is this close to a whole number."""


def parse_timm(line: str) -> StepMeter | None:
    """Parse `Train: 0 [ 50/1251 ( 4%)] … Time: 0.345s, 741.2/s (0.402s, 636.1/s) … Data: 0.011 (0.050)`.

    PyTorch's ImageNet example and the many scripts derived from it print the same meters
    (`Epoch: [0][ 50/5005] Time 0.3 (0.4) Data 0.0 (0.1)`): the value of the last step, and in brackets the mean since
    the epoch began. Steps count from 0.
    """
    if "Data" not in line or "Time" not in line:
        return None
    position, time, data = _TIMM_POSITION.search(line), _TIMM_TIME.search(line), _TIMM_DATA.search(line)
    if position is None or time is None or data is None:
        return None
    return StepMeter(
        epoch=_count(position[1] or position[2]),
        step=_count(position[3]),
        total=_count(position[4]),
        time_s=_seconds(time[1]),
        wait_s=_seconds(data[1]),
        running_time_s=_seconds(time[3]),
        running_wait_s=_seconds(data[2]),
        samples=_samples_per_step(time[1], time[2]),
    )


def _samples_per_step(time: str, rate: str | None) -> int | None:
    if rate is None:
        return None
    product = _seconds(time) * _seconds(rate)
    whole = round(product)
    return whole if whole and abs(product - whole) / whole < _SAMPLES_TOLERANCE else None


# -- MMEngine ------------------------------------------------------------------------------------------------------

_MMENGINE_POSITION = re.compile(r"(?:Epoch(?:\(train\))? *\[(\d+)\]|Iter(?:\(train\))?) *\[ *(\d+)/ *(\d+)\]")
_MMENGINE_TIME = re.compile(rf"\btime: *({NUMBER})")
_MMENGINE_DATA = re.compile(rf"\bdata_time: *({NUMBER})")


def parse_mmengine(line: str) -> StepMeter | None:
    """Parse MMEngine's and mmcv's `Epoch(train) [1][ 50/500] lr: … time: 0.3 data_time: 0.1 …`, also by iteration.

    `time` and `data_time` are means over the logger's window. Whether that covers all steps since the last line depends
    on the run's settings, so the diagnosis compares their sum with the timestamps. Lines of validation are skipped.
    """
    if "data_time:" not in line:
        return None
    position, time, data = _MMENGINE_POSITION.search(line), _MMENGINE_TIME.search(line), _MMENGINE_DATA.search(line)
    if position is None or time is None or data is None:
        return None
    epoch, step, total = position.groups()
    return StepMeter(
        epoch=None if epoch is None else _count(epoch),
        step=_count(step),
        total=_count(total) if epoch is not None else None,
        time_s=_seconds(time[1]),
        wait_s=_seconds(data[1]),
    )


# -- tqdm and Lightning --------------------------------------------------------------------------------------------

_BAR = re.compile(r"(\d{1,12})/(\d{1,12}) \[([\d:]{4,12})<[^,\]]{1,40}, *[^,\]]{1,24}(?:it/s|s/it)(?:, ?([^\]]*))?\]")
_POSTFIX = re.compile(rf"([\w./-]{{1,64}})(\(ms\)|\(s\))?=({NUMBER})(ms|s)?(?=[,\s\]]|$)")
_NOT_TRAINING = re.compile(
    r"\b(?:val|valid|validation|validating|eval|evaluating|test|testing|sanity)\b", re.IGNORECASE
)
_WAIT_UNITS_S = {"data": 1e-3, "data_ms": 1e-3, "data_s": 1.0, "data_time": 1.0}
"""Names of the wait in a postfix, with the unit where none is written: most scripts print whole milliseconds."""
_COMPUTE = "tb"
"""Name of the step time without the wait in the logs of a widely copied training loop."""
_PHASES = {"fwd", "forward", "bwd", "backward", "opt", "optimizer", "h2d"}
_COUNTERS = {"epoch", "step", "iter", "it", "v_num", "rank"}
_RICH_BAR = re.compile(
    r"Epoch \d+/-?\d+ .*?(\d{1,12})/(\d{1,12}) +(\d{1,4}:\d\d:\d\d) • (?:\d{1,4}:\d\d:\d\d|-:--:--) +\S*it/s"
)


def parse_tqdm(line: str) -> ProgressBar | None:
    """Parse `2950/4570 [34:15<27:54, 1.03s/it, …, data=576, bkbn=25, bwd=119, opt=1]`, with or without a postfix.

    The printed rate is smoothed over the last refreshes, so it is not used: steps done over elapsed time is. Bars of
    validation are skipped.
    """
    if "it/s" not in line and "s/it" not in line:
        return None
    found = _BAR.search(line)
    if found is None or _NOT_TRAINING.search(line, 0, found.start()):
        return None
    done, total, elapsed, postfix = found.groups()
    wait_s, compute_s, phases = _postfix_times(postfix or "")
    return ProgressBar(
        done=_count(done),
        total=_count(total),
        elapsed_s=_clock_seconds(elapsed),
        wait_s=wait_s,
        phases=tuple(phases),
        compute_s=compute_s,
    )


def _postfix_times(postfix: str) -> tuple[float | None, float | None, list[tuple[str, float]]]:
    """Return the wait, the step without the wait, and the phases of the step.

    By convention the phases are named after the wait and given in whole milliseconds. Losses and other metrics have a
    decimal point.
    """
    wait_s: float | None = None
    compute_s: float | None = None
    phases: list[tuple[str, float]] = []
    for name, bracket, number, suffix in _POSTFIX.findall(postfix):
        value = number.rstrip(",")
        unit = suffix or bracket.strip("()")
        unit_s = {**_UNITS_S, "": _WAIT_UNITS_S.get(name, 1e-3)}[unit]
        if name in _WAIT_UNITS_S:
            wait_s = _seconds(value, unit_s)
        elif name == _COMPUTE and unit:
            compute_s = _seconds(value, unit_s)
        elif wait_s is not None and (unit or name in _PHASES or (value.isdigit() and name not in _COUNTERS)):
            phases.append((name, _seconds(value, unit_s)))
    return wait_s, compute_s, phases


def parse_lightning(line: str) -> ProgressBar | None:
    """Parse Lightning's bars: tqdm's with `v_num=`, or rich's `Epoch 0/9 ━━━ 40/1095 0:00:03 • 0:01:37 10.84it/s`."""
    if "it/s" not in line:
        return None
    if "•" in line:
        found = _RICH_BAR.search(line)
        return found and ProgressBar(done=_count(found[1]), total=_count(found[2]), elapsed_s=_clock_seconds(found[3]))
    return parse_tqdm(line) if "v_num=" in line else None


# -- HF Trainer ----------------------------------------------------------------------------------------------------

_TRAINER_FIELD = re.compile(rf"['\"](epoch|train_\w+)['\"]: *['\"]?({NUMBER})\b")
_TRAINER_TABLE = re.compile(r"^\s*(train_runtime|train_samples_per_second|train_steps_per_second) += +([\d:.]+)\s*$")


def parse_huggingface(line: str) -> RunSummary | None:
    """Parse `{'loss': 0.5, …, 'epoch': 0.1}` and `{'train_runtime': …}`, also as table rows.

    They give rates, but no data times.
    """
    if "train_" in line and "=" in line:
        row = _TRAINER_TABLE.match(line)
        if row is not None:
            return _run_summary({row[1]: _clock_seconds(row[2])})
    if "epoch" not in line or "{" not in line or ("loss" not in line and "train_runtime" not in line):
        return None
    values = {name: _seconds(value) for name, value in _TRAINER_FIELD.findall(line)}
    return _run_summary(values) if values else None


def _run_summary(values: dict[str, float]) -> RunSummary:
    return RunSummary(
        epoch=values.get("epoch"),
        seconds=values.get("train_runtime"),
        steps_per_s=values.get("train_steps_per_second"),
        samples_per_s=values.get("train_samples_per_second"),
    )


FORMATS: tuple[tuple[str, LineParser], ...] = (
    ("slow batches", parse_slow_batch_report),
    ("timm", parse_timm),
    ("MMEngine", parse_mmengine),
    ("Lightning", parse_lightning),  # before tqdm: one of its two bars is a tqdm bar
    ("tqdm", parse_tqdm),
    ("HF Trainer", parse_huggingface),
)
"""(name, parser) of each format, in the order in which they are tried on a line."""

# -- the user's own format -----------------------------------------------------------------------------------------

USER_PATTERN = "--pattern"
"""Name of the user's format in reports: the option that defines it."""
USER_PATTERN_CHARS_MAX = 2_000
_TIME_GROUPS = ("time", "time_ms")
_WAIT_GROUPS = ("wait", "wait_ms", "data", "data_ms")
_POSITION_GROUPS = ("step", "epoch", "total")


class UserPattern:
    """A format that the user defines by a regular expression with named groups.

    The groups are `step` (number of the step), `epoch`, `total` (steps per epoch), `time` (the whole step, including
    the wait) and `wait` or `data` (the wait for the batch) in seconds, or `time_ms`, `wait_ms`, `data_ms`. Only the
    first USER_PATTERN_CHARS_MAX characters of a line are searched. An expression that backtracks for very long is not
    refused: the user wrote it, and Ctrl-C stops it.
    """

    def __init__(self, expression: str) -> None:
        try:
            self._pattern = re.compile(expression)
        except (re.error, RecursionError, OverflowError) as error:
            raise SettingError(f"the pattern is not a regular expression: {error}", stage="pattern") from error
        _check_groups(set(self._pattern.groupindex))
        self._matches = 0

    def parse(self, line: str) -> StepMeter | None:
        """Return the times of a line that matches; without a `step` group, matching lines are counted as steps."""
        found = self._pattern.search(line, 0, USER_PATTERN_CHARS_MAX)
        if found is None:
            return None
        groups = {name: text for name, text in found.groupdict().items() if text is not None}
        meter = StepMeter(
            step=_count(groups["step"]) if "step" in groups else self._matches,
            epoch=_count(groups["epoch"]) if "epoch" in groups else None,
            total=_count(groups["total"]) if "total" in groups else None,
            time_s=_first_duration(groups, _TIME_GROUPS),
            wait_s=_first_duration(groups, _WAIT_GROUPS),
        )
        self._matches += 1
        return meter


def _check_groups(groups: set[str]) -> None:
    known = (*_POSITION_GROUPS, *_TIME_GROUPS, *_WAIT_GROUPS)
    advice = f"Name its groups (?P<name>…) with names of these: {', '.join(known)}"
    if unknown := groups - set(known):
        raise SettingError(f"the pattern has groups of unknown names: {', '.join(sorted(unknown))}", advice=advice)
    if not groups & {*_TIME_GROUPS, *_WAIT_GROUPS}:
        raise SettingError("the pattern has no group that is a time", advice=advice)


def _first_duration(groups: dict[str, str], names: tuple[str, ...]) -> float | None:
    name = next((name for name in names if name in groups), None)
    return None if name is None else _seconds(groups[name], 1e-3 if name.endswith("_ms") else 1.0)
