"""Reading a recording back, whatever state it is in: cut short, damaged, compressed."""

from __future__ import annotations

import gc
import io
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.format import format_count
from penstock.errors import RecordingError, printable
from penstock.recording.bounds import plausible
from penstock.recording.format import (
    VERSION,
    AnyLine,
    EndLine,
    EpochEndLine,
    EpochStartLine,
    EventLine,
    FetchLine,
    HopsLine,
    LoaderLine,
    RunLine,
    StackSamplesLine,
    StepLine,
    StorageLine,
    SystemLine,
)

GZIP = b"\x1f\x8b"
"""How such a file begins."""


class GzipLines(io.RawIOBase):
    """Gives all there is before the damage; the standard library's reader would throw its last buffer away."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.damaged = False
        self._file = file
        self._inflater = zlib.decompressobj(wbits=31)
        self._left = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        """For io.BufferedReader."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What comes next; nothing after the end, nor after damage."""
        while not self._left and not self._ended:
            self._left = memoryview(self._more())
        part = self._left[: len(buffer)]
        buffer[: len(part)] = part
        self._left = self._left[len(part) :]
        return len(part)

    def _more(self) -> bytes:
        """From 4 KiB come 4 MiB at most: no bomb."""
        data = self._inflater.unused_data or self._file.read(4096)
        if not data:
            self._ended, self.damaged = True, not self._inflater.eof
            return b""
        if self._inflater.eof:  # files joined by cat
            self._inflater = zlib.decompressobj(wbits=31)
        try:
            return self._inflater.decompress(data)
        except zlib.error:
            self._ended = self.damaged = True
            return b""


FILE_BYTES_MAX = 2 << 30
"""Inflated, if it is compressed: some ten million steps."""
LINE_BYTES_MAX = 1 << 20
STRANGE_LINES_MAX = 1000
"""A file that begins with so many lines none of which is good is something else."""
_EXAMPLES = 3

_DECODER: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)
_KINDS = {kind.__struct_config__.tag for kind in AnyLine.__args__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A run as it was recorded: the lines of each kind, in the order of the file.

    Every loader that a pass, a step, a fetch or a line of hops names is in `loaders`; their times are finite and not
    negative.
    """

    run: RunLine
    loaders: dict[int, LoaderLine]
    epochs: tuple[EpochStartLine, ...] = ()
    epoch_ends: tuple[EpochEndLine, ...] = ()
    steps: tuple[StepLine, ...] = ()
    fetches: tuple[FetchLine, ...] = ()
    stack_samples: tuple[StackSamplesLine, ...] = ()
    hops: tuple[HopsLine, ...] = ()
    system: tuple[SystemLine, ...] = ()
    storage: tuple[StorageLine, ...] = ()
    events: tuple[EventLine, ...] = ()
    end: EndLine | None = None
    """None: the run was killed, or still goes."""
    notes: tuple[str, ...] = ()
    """What was wrong with the file, in words."""


def load(path: str | Path) -> Recording:
    """All that can still be read. Raises only where that is nothing, or where reading on would be wrong."""
    try:
        with open(path, "rb") as file, _collector_paused():
            if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
                raise _too_large(path)
            pile = _LineCollector(path)
            for number, raw in _lines(path, file, pile):
                pile.take(number, raw)
            return pile.recording()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecordingError(f"cannot read {path}: {reason}") from error


def need_run(recording: Recording) -> None:
    """Refused where it is of a probe, whose steps had no data to wait for."""
    if recording.run.probe:
        raise RecordingError(
            f"this is the recording of a probe ({printable(recording.run.probe)}), not of a run: it waited for no data",
            advice="Record a run: `penstock run` without --probe",
        )


def is_recording(path: str | Path) -> bool:
    """Whether it begins like one; a training log does not."""
    try:
        with open(path, "rb") as file:
            begin = file.read(4096)
        if begin.startswith(GZIP):
            begin = zlib.decompressobj(wbits=31).decompress(begin, 64)
    except (OSError, zlib.error):
        return False
    return begin.lstrip().startswith(b'{"kind":')


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Millions of lines and not one cycle: looking for garbage again and again is a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _LineCollector:
    """Sorts lines by kind as they come, and keeps account of those it cannot use."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._by_kind: dict[type[AnyLine], list[Any]] = defaultdict(list)
        self._problems: Counter[str] = Counter()
        self._places: dict[str, list[str]] = defaultdict(list)

    def take(self, number: int, raw: bytes) -> None:
        """One line of the file; typed decoding is the quick way, and only what it refuses is looked at closely."""
        try:
            line = _DECODER.decode(raw)
        except (ValueError, RecursionError) as error:
            mended = self._mend(number, raw, error)
            if mended is None:
                if not self._by_kind and number >= STRANGE_LINES_MAX:
                    raise self._no_recording() from None
                return
            line = mended
        if not plausible(line):
            self.problem("skipped: a time or a number that cannot be", number)
            return
        if type(line) is RunLine and line.version > VERSION:
            raise self._newer()
        self._by_kind[type(line)].append(line)

    def problem(self, what: str, number: int, detail: str = "") -> None:
        """To be told in a note, with the first few places."""
        self._problems[what] += 1
        if self._problems[what] <= _EXAMPLES:
            self._places[what].append(f"line {number}{': ' if detail else ''}{printable(detail[:120])}")

    def _mend(self, number: int, raw: bytes, error: Exception) -> AnyLine | None:
        """JSON has no NaN, a null stands in its place: what can be left out is."""
        if not raw.strip():
            return None
        try:
            thing = msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            self.problem("skipped: not JSON" if raw.endswith(b"\n") else "skipped: cut short at the end", number)
            return None
        kind = thing.get("kind") if isinstance(thing, dict) else None
        if kind == "run" and isinstance(thing.get("version"), int) and thing["version"] > VERSION:
            raise self._newer()
        if not isinstance(kind, str) or kind not in _KINDS:
            self.problem("skipped: of a kind that is not known here", number, str(kind))
            return None
        try:
            line: AnyLine = msgspec.convert(_without_nulls(thing), AnyLine)
        except (ValueError, RecursionError):
            self.problem("skipped: damaged", number, str(error))
            return None
        self.problem("used without the numbers that are null in them", number)
        return line

    def recording(self) -> Recording:
        """Of all lines taken."""
        if not self._by_kind:
            raise self._no_recording()
        of = self._by_kind
        notes = [_note(count, what, self._places[what]) for what, count in self._problems.items()]
        runs, ends = of[RunLine], of[EndLine]
        if not runs:
            notes.append("the first line is missing: machine and command are not known")
        if len(runs) > 1:
            notes.append(f"{len(runs)} runs have written to this file; their lines are mixed")
        if ends and ends[-1].dropped:
            notes.append(f"{ends[-1].dropped} lines were lost while recording: the disk was too slow or full")
        loaders = {loader.loader: loader for loader in of[LoaderLine]}
        named = {
            line.loader
            for line in chain(of[EpochStartLine], of[EpochEndLine], of[StepLine], of[FetchLine], of[HopsLine])
        }
        missing = sorted(named - loaders.keys())
        if missing:
            notes.append(f"loaders named but not described: {len(missing)}, the first is number {missing[0]}")
            loaders.update((number, LoaderLine(loader=number)) for number in missing)
        return Recording(
            run=runs[0] if runs else RunLine(),
            loaders=loaders,
            epochs=tuple(of[EpochStartLine]),
            epoch_ends=tuple(of[EpochEndLine]),
            steps=tuple(of[StepLine]),
            fetches=tuple(of[FetchLine]),
            stack_samples=tuple(of[StackSamplesLine]),
            hops=tuple(of[HopsLine]),
            system=tuple(of[SystemLine]),
            storage=tuple(of[StorageLine]),
            events=tuple(of[EventLine]),
            end=ends[-1] if ends else None,
            notes=(*notes, *_clock_notes(of[StepLine], of[SystemLine])),
        )

    def _no_recording(self) -> RecordingError:
        what = "none of its lines is one of a recording" if self._problems else "it is empty"
        return RecordingError(f"{self._path} is not a recording: {what}", advice="`penstock run` makes one")

    def _newer(self) -> RecordingError:
        return RecordingError(f"{self._path} was made by a newer penstock", advice="Update penstock to read it")


def _lines(path: str | Path, file: io.BufferedReader, pile: _LineCollector) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 1; never more than a line in memory."""
    inflated = GzipLines(file) if file.peek(2)[:2] == GZIP else None
    source = file if inflated is None else io.BufferedReader(inflated)
    number, left_bytes, skipping = 1, FILE_BYTES_MAX, False
    while raw := source.readline(LINE_BYTES_MAX):
        left_bytes -= len(raw)
        if left_bytes < 0:
            raise _too_large(path)
        whole = len(raw) < LINE_BYTES_MAX or raw.endswith(b"\n")
        if whole and not skipping:
            yield number, raw
        elif not skipping:
            pile.problem(f"skipped: longer than {LINE_BYTES_MAX >> 20} MiB", number)
        skipping = not whole
        number += whole
    if inflated is not None and inflated.damaged:
        pile.problem("and all after it lost: the compressed data is damaged or cut short", number)


def _too_large(path: str | Path) -> RecordingError:
    return RecordingError(
        f"{path} is larger than {FILE_BYTES_MAX >> 30} GiB", advice="Load a part of it: head -n 1000000 makes one"
    )


def _without_nulls(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {name: _without_nulls(value) for name, value in thing.items() if value is not None}
    if isinstance(thing, list):
        return [_without_nulls(value) for value in thing]
    return thing


def _note(count: int, what: str, places: Sequence[str]) -> str:
    shown = "; ".join(places) + ("; …" if count > len(places) else "")
    return f"{format_count(count, 'line')} {what} ({shown})"


def _clock_notes(steps: Sequence[StepLine], system: Sequence[SystemLine]) -> Iterator[str]:
    """Times of one pass and of the system's samples only ever grow, unless a clock was set back or files were mixed."""
    times: dict[object, list[float]] = defaultdict(list)
    for step in steps:
        times[step.loader, step.epoch].append(step.at_s)
    times["system"] = [sample.at_s for sample in system]
    jumps_s = [now - then for series in times.values() for then, now in pairwise(series) if now < then]
    if jumps_s:
        yield f"the clock went back {len(jumps_s)}×, by up to {-min(jumps_s):.3g} s"
