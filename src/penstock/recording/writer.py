"""Writing a recording while the run goes: the training appends to a queue, a thread encodes and writes.

What the thread has written is the operating system's: a killed process loses what waited here, a quarter of a second of
lines, and what the watcher had not yet told.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.errors import RecordingError, printable
from penstock.recording.format import AnyLine, EndLine, RunLine

log = logging.getLogger("penstock")

WRITE_EVERY_S = 0.25
WAITING_MAX = 200_000
"""Lines, some 100 MB. More wait only where the disk stands still; then lines are dropped and counted."""
CLOSE_WAIT_S = 10.0
"""A disk that has not taken the rest by then is given up: the script must be able to end."""
_CHUNK_LINES = 1000
"""Encoded at a time: the training waits for the interpreter's lock meanwhile, a millisecond at most."""

_alive: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recorder:
    """A sink that writes one run to one file. A file of that name is replaced.

    Once it is open nothing here raises: a disk that fills up ends the recording, with one warning, not the training.
    """

    def __init__(self, path: str | Path, run: RunLine) -> None:
        self.dropped = 0
        """Lines lost so far, because the disk was too slow or refused them."""
        self._path = Path(path)
        self._waiting: deque[AnyLine] = deque()
        self._encoder = msgspec.json.Encoder(enc_hook=repr)
        self._closed = False
        self._failed = False
        self._ending = threading.Event()
        self._fd = _open(self._path)
        try:
            _write_all(self._fd, self._encode([run]))
        except OSError as error:
            os.close(self._fd)
            raise _cannot_write(self._path, error) from error
        self._thread = threading.Thread(target=self._run, name="penstock-recorder", daemon=True)
        self._thread.start()
        _alive.add(self)

    def put(self, line: AnyLine) -> None:
        """Take a line; never waits, never fails. After `close`, and in a forked child, it does nothing."""
        if self._closed:
            return
        if self._failed or (len(self._waiting) >= WAITING_MAX and not isinstance(line, EndLine)):
            self.dropped += 1
            return
        self._waiting.append(line)

    def close(self) -> None:
        """Write what waits, then no more."""
        if self._closed:
            return
        self._closed = True
        self._ending.set()
        self._thread.join(CLOSE_WAIT_S)
        if self._thread.is_alive():
            log.warning("the recording %s is not complete: its disk did not answer", printable(str(self._path)))

    def _run(self) -> None:
        try:
            while not self._ending.wait(WRITE_EVERY_S):
                self._write_waiting()
            self._write_waiting()
        except Exception as error:
            self._failed = True
            self._drop_waiting()
            log.warning("recording to %s stopped: %s", printable(str(self._path)), error)
        finally:
            os.close(self._fd)

    def _write_waiting(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), _CHUNK_LINES)
            lines = [self._waiting.popleft() for _ in range(count)]
            try:
                _write_all(self._fd, self._encode(lines))
            except BaseException:
                self.dropped += count
                raise

    def _encode(self, lines: list[AnyLine]) -> bytes:
        try:
            return self._encoder.encode_lines([self._with_dropped(line) for line in lines])
        except Exception:  # one of them holds a name that is not UTF-8, or a user's object whose repr raises
            return b"".join(self._encode_one(line) for line in lines)

    def _encode_one(self, line: AnyLine) -> bytes:
        for encode in (self._encoder.encode, _encode_odd):
            with suppress(Exception):
                return encode(self._with_dropped(line)) + b"\n"
        self.dropped += 1
        return b""

    def _with_dropped(self, line: AnyLine) -> AnyLine:
        """Only here it is known how many were lost."""
        return msgspec.structs.replace(line, dropped=self.dropped) if isinstance(line, EndLine) else line

    def _drop_waiting(self) -> None:
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def _forget(self) -> None:
        """In a forked child, where there is no thread: the run is the parent's to record."""
        self._closed = True
        self._waiting.clear()


def _encode_odd(line: AnyLine) -> bytes:
    """Characters that no UTF-8 can hold become question marks."""
    text = json.dumps(msgspec.to_builtins(line, enc_hook=repr), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _open(path: Path) -> int:
    """Opened first, emptied after: a file that cannot be written to keeps what it holds."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    with suppress(OSError):  # a pipe or a terminal: nothing to empty
        os.ftruncate(fd, 0)
    return fd


def _cannot_write(path: Path, error: Exception) -> RecordingError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RecordingError(
        f"cannot record to {path}: {reason}", advice="Name a file in a folder that exists and may be written to"
    )


def _write_all(fd: int, data: bytes) -> None:
    """All of it: a disk that is nearly full takes a part, and refuses the next."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _after_fork() -> None:
    for recorder in list(_alive):
        recorder._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
