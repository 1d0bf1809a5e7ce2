"""From a file to a `TrainLog`: every line is shown to every format in turn, once, whatever the size of the file."""

from __future__ import annotations

import codecs
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from penstock.diagnose.training_log.formats import huggingface, lightning, mmengine, timm, tqdm
from penstock.diagnose.training_log.formats import pattern as own
from penstock.diagnose.training_log.formats import slow_batches as slow
from penstock.diagnose.training_log.formats.numbers import stamp
from penstock.diagnose.training_log.formats.settings import Settings
from penstock.diagnose.training_log.lines import Bar, Meter, Said, SlowBatch, Totals, TrainLog, Window
from penstock.errors import RecordingError

LINE_CHARS_MAX = 16_384
"""The rest of a longer line is not looked at: no format needs it, and a binary file has no line ends."""
_CHUNK_BYTES = 1 << 20
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Lines:
    """Yields the lines of a file as text, a chunk in memory at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.cut = 0
        """Lines longer than LINE_CHARS_MAX, so far."""

    def __iter__(self) -> Iterator[str]:
        rest = ""
        too_long = False  # the line under way was cut, and what follows belongs to it
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
            self.cut += 1
            line = line[:LINE_CHARS_MAX]
        if "\x1b" in line:
            line = _ESCAPES.sub("", line)
        if line and not line.isspace():
            yield line


KEPT_MAX = 200_000
"""Lines kept of one kind, the last ones: a bar that was drawn ten times a second for five hours."""

Kind = TypeVar("Kind", SlowBatch, Window, Bar, Meter, Totals)
Parse = Callable[[str], Said | None]
FORMATS: tuple[tuple[str, Parse], ...] = (
    (slow.NAME, slow.parse),
    (timm.NAME, timm.parse),
    (mmengine.NAME, mmengine.parse),
    (lightning.NAME, lightning.parse),
    (tqdm.NAME, tqdm.parse),
    (huggingface.NAME, huggingface.parse),
)


def read_log(path: str | Path, pattern: str | None = None) -> TrainLog:
    """What a plain training log says; `pattern` adds a format of the user's own (see formats/pattern.py)."""
    formats = FORMATS if pattern is None else ((own.NAME, own.Pattern(pattern).parse), *FORMATS)
    draft = _Draft(formats)
    try:
        with open(path, "rb") as file:
            lines = Lines(file)
            for line in lines:
                draft.take(line)
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror or error}") from error
    log = draft.finish(lines.cut)
    if not log.recognised:
        raise RecordingError(
            f"none of the {log.lines:,} lines of {path} is in a format known here "
            f"({', '.join(name for name, _ in formats)})",
            advice=r"Say how its lines look with --pattern, such as 'step (?P<step>\d+).*data (?P<data_ms>[\d.]+) ms'",
        )
    return log


class _Draft:
    """A log under way."""

    def __init__(self, formats: tuple[tuple[str, Parse], ...]) -> None:
        self._formats = formats
        self._settings = Settings()
        self._kept: dict[type[Said], deque[Said]] = {
            kind: deque(maxlen=KEPT_MAX) for kind in (SlowBatch, Window, Bar, Meter, Totals)
        }
        self._recognised: Counter[str] = Counter()
        self._unusable = self._dropped = self._lines = 0

    def take(self, line: str) -> None:
        """One line."""
        self._lines += 1
        self._settings.look(line)
        for name, parse in self._formats:
            try:
                said = parse(line)
            except ValueError:
                self._unusable += 1
                return
            if said is not None:
                self._recognised[name] += 1
                self._keep(line, said)
                return

    def _keep(self, line: str, said: Said) -> None:
        kept = self._kept[type(said)]
        self._dropped += len(kept) == KEPT_MAX
        at_s = stamp(line)
        kept.append(said if at_s is None else replace(said, at_s=at_s))

    def finish(self, cut: int) -> TrainLog:
        """All of it; `cut` lines were too long."""
        notes = [
            f"{number:,} {what}"
            for number, what in (
                (self._unusable, "lines name times that cannot be (negative, NaN or absurd) and were left out"),
                (cut, f"lines are longer than {LINE_CHARS_MAX:,} characters: the rest of each was not looked at"),
                (self._dropped, f"lines were left out: of each kind only the last {KEPT_MAX:,} are kept"),
            )
            if number
        ]
        return TrainLog(
            slow=self._of(SlowBatch),
            windows=self._of(Window),
            bars=self._of(Bar),
            meters=self._of(Meter),
            totals=self._of(Totals),
            workers=tuple(self._settings.workers),
            prefetch_factors=tuple(self._settings.prefetch_factors),
            batch_sizes=tuple(self._settings.batch_sizes),
            lines=self._lines,
            recognised=dict(self._recognised),
            notes=tuple(notes),
        )

    def _of(self, kind: type[Kind]) -> tuple[Kind, ...]:
        return tuple(said for said in self._kept[kind] if isinstance(said, kind))
