"""Loading a recording, also one that is cut short, damaged or compressed.

Lines that cannot be used are skipped and reported as notes of the `Recording`.
"""

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
from penstock.recording.bounds import is_plausible
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
"""First bytes of a gzip file."""
INPUT_BYTES = 4096
"""Compressed bytes read at a time. They inflate to 4 MiB at most, so a malicious file cannot fill the memory."""
GZIP_WBITS = 31
"""zlib: a window of 32 KiB, with the header and checksum of gzip."""


class GzipLines(io.RawIOBase):
    """A readable stream of a gzip file that gives all data before damage; `gzip.open` would lose its last buffer."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.damaged = False
        """Whether the file is damaged or cut short, as far as it has been read."""
        self._file = file
        self._inflater = zlib.decompressobj(wbits=GZIP_WBITS)
        self._unread = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        """Return True: `io.BufferedReader` requires it."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes; return 0 at the end of the file and after damage."""
        while not self._unread and not self._ended:
            self._unread = memoryview(self._inflate_more())
        part = self._unread[: len(buffer)]
        buffer[: len(part)] = part
        self._unread = self._unread[len(part) :]
        return len(part)

    def _inflate_more(self) -> bytes:
        data = self._inflater.unused_data or self._file.read(INPUT_BYTES)
        if not data:
            self._ended, self.damaged = True, not self._inflater.eof
            return b""
        if self._inflater.eof:  # another gzip file follows, appended by cat
            self._inflater = zlib.decompressobj(wbits=GZIP_WBITS)
        try:
            return self._inflater.decompress(data)
        except zlib.error:
            self._ended = self.damaged = True
            return b""


FILE_BYTES_MAX = 2 << 30
"""Largest recording, uncompressed: about ten million steps."""
LINE_BYTES_MAX = 1 << 20
"""Longer lines are skipped, so that no more than this is in memory."""
UNKNOWN_LINES_MAX = 1000
"""A file is refused if none of its first lines, up to this number, is a line of a recording."""
EXAMPLES_MAX = 3
"""Places that a note names."""

_DECODER: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)
_KINDS = {kind.__struct_config__.tag for kind in AnyLine.__args__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded run: the lines of each kind, in the order of the file.

    `loaders` holds every loader that an epoch, a step, a fetch or a line of hops names. The times of these lines are
    finite and not negative.
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
    """None: the run was killed, or is still running."""
    notes: tuple[str, ...] = ()
    """Descriptions of what was wrong with the file."""


def load(path: str | Path) -> Recording:
    """Load every line that can be read.

    Raises RecordingError if there is none, or if the file is too large or was written by a newer penstock.
    """
    try:
        with open(path, "rb") as file, _gc_paused():
            if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
                raise _too_large(path)
            collector = _LineCollector(path)
            for number, raw in _lines(path, file, collector):
                collector.add(number, raw)
            return collector.recording()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecordingError(f"cannot read {path}: {reason}") from error


def require_training_run(recording: Recording) -> None:
    """Raise RecordingError if the recording is of a probe, whose steps did not wait for data."""
    if recording.run.probe:
        raise RecordingError(
            f"this is the recording of a probe ({printable(recording.run.probe)}), not of a run: it waited for no data",
            advice="Record a run: `penstock run` without --probe",
        )


def is_recording(path: str | Path) -> bool:
    """Return whether the file begins like a recording; a training log does not."""
    try:
        with open(path, "rb") as file:
            start = file.read(INPUT_BYTES)
        if start.startswith(GZIP):
            start = zlib.decompressobj(wbits=GZIP_WBITS).decompress(start, 64)
    except (OSError, zlib.error):
        return False
    return start.lstrip().startswith(b'{"kind":')


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pause garbage collection: the lines hold no cycles, and searching for them takes a third of the loading time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _LineCollector:
    """Sorts the lines of a file by kind and counts those that it cannot use."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._by_kind: dict[type[AnyLine], list[Any]] = defaultdict(list)
        self._problems: Counter[str] = Counter()
        """Number of lines by problem."""
        self._examples: dict[str, list[str]] = defaultdict(list)

    def add(self, number: int, raw: bytes) -> None:
        """Add one line of the file. Typed decoding is fast; only a line that it refuses is decoded step by step."""
        try:
            line = _DECODER.decode(raw)
        except (ValueError, RecursionError) as error:
            repaired = self._decode_leniently(number, raw, error)
            if repaired is None:
                if not self._by_kind and number >= UNKNOWN_LINES_MAX:
                    raise self._no_recording() from None
                return
            line = repaired
        if not is_plausible(line):
            self.add_problem("skipped: a time or a number that is impossible", number)
            return
        if type(line) is RunLine and line.version > VERSION:
            raise self._newer_version()
        self._by_kind[type(line)].append(line)

    def add_problem(self, what: str, number: int, detail: str = "") -> None:
        """Count a problem for a note, which names the first few places."""
        self._problems[what] += 1
        if self._problems[what] <= EXAMPLES_MAX:
            self._examples[what].append(f"line {number}{': ' if detail else ''}{printable(detail[:120])}")

    def _decode_leniently(self, number: int, raw: bytes, error: Exception) -> AnyLine | None:
        """Decode a line without its nulls; return None if that fails too.

        JSON has no NaN, so a null is written in its place; a field with a default can be left out.
        """
        if not raw.strip():
            return None
        try:
            decoded = msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            self.add_problem("skipped: not JSON" if raw.endswith(b"\n") else "skipped: cut short at the end", number)
            return None
        kind = decoded.get("kind") if isinstance(decoded, dict) else None
        if kind == "run" and isinstance(decoded.get("version"), int) and decoded["version"] > VERSION:
            raise self._newer_version()
        if not isinstance(kind, str) or kind not in _KINDS:
            self.add_problem("skipped: of an unknown kind", number, str(kind))
            return None
        try:
            line: AnyLine = msgspec.convert(_without_nulls(decoded), AnyLine)
        except (ValueError, RecursionError):
            self.add_problem("skipped: damaged", number, str(error))
            return None
        self.add_problem("used without the numbers that are null in them", number)
        return line

    def recording(self) -> Recording:
        """Return the recording of all lines that were added."""
        if not self._by_kind:
            raise self._no_recording()
        lines = self._by_kind
        notes = [_note(count, what, self._examples[what]) for what, count in self._problems.items()]
        runs, ends = lines[RunLine], lines[EndLine]
        if not runs:
            notes.append("the first line is missing: machine and command are not known")
        if len(runs) > 1:
            notes.append(f"{len(runs)} runs have written to this file; their lines are mixed")
        if ends and ends[-1].dropped:
            notes.append(f"{ends[-1].dropped} lines were lost while recording: the disk was too slow or full")
        loaders = {loader.loader: loader for loader in lines[LoaderLine]}
        named = {
            line.loader
            for line in chain(
                lines[EpochStartLine], lines[EpochEndLine], lines[StepLine], lines[FetchLine], lines[HopsLine]
            )
        }
        missing = sorted(named - loaders.keys())
        if missing:
            notes.append(f"loaders named but not described: {len(missing)}, the first is number {missing[0]}")
            loaders.update((number, LoaderLine(loader=number)) for number in missing)
        return Recording(
            run=runs[0] if runs else RunLine(),
            loaders=loaders,
            epochs=tuple(lines[EpochStartLine]),
            epoch_ends=tuple(lines[EpochEndLine]),
            steps=tuple(lines[StepLine]),
            fetches=tuple(lines[FetchLine]),
            stack_samples=tuple(lines[StackSamplesLine]),
            hops=tuple(lines[HopsLine]),
            system=tuple(lines[SystemLine]),
            storage=tuple(lines[StorageLine]),
            events=tuple(lines[EventLine]),
            end=ends[-1] if ends else None,
            notes=(*notes, *_clock_notes(lines[StepLine], lines[SystemLine])),
        )

    def _no_recording(self) -> RecordingError:
        what = "none of its lines is one of a recording" if self._problems else "it is empty"
        return RecordingError(f"{self._path} is not a recording: {what}", advice="`penstock run` makes one")

    def _newer_version(self) -> RecordingError:
        return RecordingError(f"{self._path} was made by a newer penstock", advice="Update penstock to read it")


def _lines(path: str | Path, file: io.BufferedReader, collector: _LineCollector) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, from 1. No more than one line is in memory."""
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
            collector.add_problem(f"skipped: longer than {LINE_BYTES_MAX >> 20} MiB", number)
        skipping = not whole
        number += whole
    if inflated is not None and inflated.damaged:
        collector.add_problem("and all after it lost: the compressed data is damaged or cut short", number)


def _too_large(path: str | Path) -> RecordingError:
    return RecordingError(
        f"{path} is larger than {FILE_BYTES_MAX >> 30} GiB", advice="Load a part of it: head -n 1000000 makes one"
    )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _note(count: int, what: str, examples: Sequence[str]) -> str:
    shown = "; ".join(examples) + ("; …" if count > len(examples) else "")
    return f"{format_count(count, 'line')} {what} ({shown})"


def _clock_notes(steps: Sequence[StepLine], system: Sequence[SystemLine]) -> Iterator[str]:
    """Report times that decrease within an epoch or the system's lines: a clock was set back, or files were mixed."""
    times: dict[object, list[float]] = defaultdict(list)
    for step in steps:
        times[step.loader, step.epoch].append(step.at_s)
    times["system"] = [sample.at_s for sample in system]
    decreases_s = [now - then for series in times.values() for then, now in pairwise(series) if now < then]
    if decreases_s:
        yield f"the clock went back {len(decreases_s)}×, by up to {-min(decreases_s):.3g} s"
