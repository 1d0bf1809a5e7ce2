"""Reading a training log: file → lines → `TrainingLog`.

The file is read once, in chunks, so that a log of any size can be diagnosed.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from penstock.diagnose.training_log.formats import FORMATS, USER_PATTERN, LineParser, UserPattern, parse_timestamp
from penstock.diagnose.training_log.parsed_log import (
    ParsedLine,
    ProgressBar,
    RunSummary,
    SlowBatch,
    StepMeter,
    TrainingLog,
    WaitStatistics,
)
from penstock.errors import RecordingError

LINE_CHARS_MAX = 16_384
"""The rest of a longer line is ignored: no format needs it, and a binary file has no line ends."""
LINES_KEPT_MAX = 200_000
"""Lines kept of each kind, the last ones: enough for a bar drawn ten times a second for five hours."""
_CHUNK_BYTES = 1 << 20
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_VALUE = r"['\"]?(?:\s*[:=]\s*|\s+)['\"]?(\d{1,7})\b(?![.:/])"
_WORKERS = re.compile(
    rf"(?<![\w])(?:dataloader_|--)?(?:num[_-]workers|workers_per_gpu){_VALUE}"
    r"|(?:--workers[ =]|\bworkers[=:] ?)(\d{1,7})\b"
)
_PREFETCH = re.compile(rf"(?<![\w])(?:dataloader_|--)?prefetch[_-]factor{_VALUE}")
_BATCH = re.compile(rf"(?<![\w])(?:--)?batch[_-]size{_VALUE}|Total train batch size [^=]{{0,60}}= ([\d,]{{1,9}})")
_SETTING_VALUES_MAX = 16
"""Distinct values kept per setting. A name with more values than this is not a setting."""
_LineT = TypeVar("_LineT", SlowBatch, WaitStatistics, ProgressBar, StepMeter, RunSummary)


def read_log(path: str | Path, pattern: str | None = None) -> TrainingLog:
    """Parse a plain training log; `pattern` adds a format of the user's own (see `formats.UserPattern`).

    Raises RecordingError if the file cannot be read or none of its lines is recognised, SettingError if the pattern is
    invalid.
    """
    formats = FORMATS if pattern is None else ((USER_PATTERN, UserPattern(pattern).parse), *FORMATS)
    builder = _LogBuilder(formats)
    try:
        with open(path, "rb") as file:
            lines = LogLines(file)
            for line in lines:
                builder.add(line)
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror or error}") from error
    log = builder.build(lines.truncated)
    if not log.recognised:
        raise RecordingError(
            f"none of the {log.lines:,} lines of {path} is in a known format "
            f"({', '.join(name for name, _ in formats)})",
            advice="Describe the format of its lines with --pattern, such as "
            r"'step (?P<step>\d+).*data (?P<data_ms>[\d.]+) ms'",
        )
    return log


class LogLines:
    """Iterates over the lines of a file as text, with one chunk of the file in memory at a time.

    A carriage return ends a line too, terminal escape sequences are removed, and blank lines are skipped.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.truncated = 0
        """Number of lines so far that were longer than LINE_CHARS_MAX."""

    def __iter__(self) -> Iterator[str]:
        rest = ""
        too_long = False  # the current line was truncated, and the next text belongs to it
        for text in self._decoded():
            *whole, rest = (rest + text).split("\n")
            for line in whole:
                if not too_long:
                    yield from self._clean(line)
                too_long = False
            if len(rest) > LINE_CHARS_MAX:
                if not too_long:
                    yield from self._clean(rest)
                rest, too_long = "", True
        if not too_long:
            yield from self._clean(rest)

    def _decoded(self) -> Iterator[str]:
        chunk = self._file.read(_CHUNK_BYTES)
        encoding = next((name for bom, name in _BOMS if chunk.startswith(bom)), "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        while chunk:
            yield decoder.decode(chunk).replace("\r", "\n")
            chunk = self._file.read(_CHUNK_BYTES)
        yield decoder.decode(b"", final=True)

    def _clean(self, line: str) -> Iterator[str]:
        if len(line) > LINE_CHARS_MAX:
            self.truncated += 1
            line = line[:LINE_CHARS_MAX]
        if "\x1b" in line:
            line = _ESCAPES.sub("", line)
        if line and not line.isspace():
            yield line


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
        if value not in values and len(values) < _SETTING_VALUES_MAX:
            values.append(value)


class _LogBuilder:
    """Collects the parsed lines of one log and builds the `TrainingLog`."""

    def __init__(self, formats: tuple[tuple[str, LineParser], ...]) -> None:
        self._formats = formats
        self._settings = SettingsScanner()
        self._kept: dict[type[ParsedLine], deque[ParsedLine]] = {
            kind: deque(maxlen=LINES_KEPT_MAX)
            for kind in (SlowBatch, WaitStatistics, ProgressBar, StepMeter, RunSummary)
        }
        self._recognised: Counter[str] = Counter()
        self._unusable = self._dropped = self._lines = 0

    def add(self, line: str) -> None:
        """Parse one line with the first format that recognises it."""
        self._lines += 1
        self._settings.scan(line)
        for name, parse in self._formats:
            try:
                parsed = parse(line)
            except ValueError:
                self._unusable += 1
                return
            if parsed is not None:
                self._recognised[name] += 1
                self._keep(line, parsed)
                return

    def _keep(self, line: str, parsed: ParsedLine) -> None:
        kept = self._kept[type(parsed)]
        self._dropped += len(kept) == LINES_KEPT_MAX
        at_s = parse_timestamp(line)
        kept.append(parsed if at_s is None else replace(parsed, at_s=at_s))

    def build(self, truncated: int) -> TrainingLog:
        """Return the log; `truncated` is the number of lines that were too long."""
        notes = [
            f"{number:,} {what}"
            for number, what in (
                (self._unusable, "lines give impossible times (negative, NaN or absurdly long) and were left out"),
                (truncated, f"lines are longer than {LINE_CHARS_MAX:,} characters: the rest of each was ignored"),
                (self._dropped, f"lines were left out: only the last {LINES_KEPT_MAX:,} of each kind are kept"),
            )
            if number
        ]
        return TrainingLog(
            slow=self._lines_of(SlowBatch),
            statistics=self._lines_of(WaitStatistics),
            bars=self._lines_of(ProgressBar),
            meters=self._lines_of(StepMeter),
            summaries=self._lines_of(RunSummary),
            workers=tuple(self._settings.workers),
            prefetch_factors=tuple(self._settings.prefetch_factors),
            batch_sizes=tuple(self._settings.batch_sizes),
            lines=self._lines,
            recognised=dict(self._recognised),
            notes=tuple(notes),
        )

    def _lines_of(self, kind: type[_LineT]) -> tuple[_LineT, ...]:
        return tuple(line for line in self._kept[kind] if isinstance(line, kind))
