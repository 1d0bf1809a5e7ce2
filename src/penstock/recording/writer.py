"""Writing a recording during the run: the training's threads append lines to a queue, another thread writes them.

A process that is killed loses the lines in the queue, which are those of a quarter of a second, and the steps that the
watcher has not yet turned into lines. Everything written before is safe with the operating system.
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
"""Seconds between two writes."""
QUEUE_LINES_MAX = 200_000
"""Largest queue, about 100 MB. It fills only if the disk does not respond; then lines are dropped and counted."""
CLOSE_WAIT_S = 10.0
"""Seconds that `close` waits for the disk; after that the rest is given up, because the script must be able to end."""
_CHUNK_LINES = 1000
"""Lines encoded at a time. The training waits for the interpreter's lock meanwhile, a millisecond at most."""

_alive: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recorder:
    """A sink that writes one run to one file. An existing file is replaced.

    After the constructor nothing raises: a full disk ends the recording with one warning, and the training goes on.
    """

    def __init__(self, path: str | Path, run: RunLine) -> None:
        self.dropped = 0
        """Lines lost so far because the disk was too slow or refused them."""
        self._path = Path(path)
        self._queue: deque[AnyLine] = deque()
        self._encoder = msgspec.json.Encoder(enc_hook=repr)
        self._closed = False
        self._failed = False
        self._closing = threading.Event()
        self._fd = _open(self._path)
        try:
            _write_all(self._fd, self._encode([run]))
        except OSError as error:
            os.close(self._fd)
            with suppress(OSError):  # no file cut short is left behind
                if self._path.is_file():
                    self._path.unlink()
            raise _cannot_write(self._path, error) from error
        self._thread = threading.Thread(target=self._run, name="penstock-recorder", daemon=True)
        self._thread.start()
        _alive.add(self)

    def put(self, line: AnyLine) -> None:
        """Queue a line, without waiting or failing. After `close`, and in a forked child, this does nothing."""
        if self._closed:
            return
        if self._failed or (len(self._queue) >= QUEUE_LINES_MAX and not isinstance(line, EndLine)):
            self.dropped += 1
            return
        self._queue.append(line)

    def close(self) -> None:
        """Write the queued lines and close the file. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._thread.join(CLOSE_WAIT_S)
        if self._thread.is_alive():
            log.warning("the recording %s is not complete: its disk did not answer", printable(str(self._path)))

    def _run(self) -> None:
        try:
            while not self._closing.wait(WRITE_EVERY_S):
                self._write_queue()
            self._write_queue()
        except Exception as error:
            self._failed = True
            self._drop_queue()
            log.warning("recording to %s stopped: %s", printable(str(self._path)), error)
        finally:
            os.close(self._fd)

    def _write_queue(self) -> None:
        while self._queue:
            count = min(len(self._queue), _CHUNK_LINES)
            lines = [self._queue.popleft() for _ in range(count)]
            try:
                _write_all(self._fd, self._encode(lines))
            except BaseException:
                self.dropped += count
                raise

    def _encode(self, lines: list[AnyLine]) -> bytes:
        try:
            return self._encoder.encode_lines([self._with_dropped(line) for line in lines])
        except Exception:  # a line holds a name that is not UTF-8, or an object of the user whose repr raises
            return b"".join(self._encode_one(line) for line in lines)

    def _encode_one(self, line: AnyLine) -> bytes:
        for encode in (self._encoder.encode, _encode_any_text):
            with suppress(Exception):
                return encode(self._with_dropped(line)) + b"\n"
        self.dropped += 1
        return b""

    def _with_dropped(self, line: AnyLine) -> AnyLine:
        """Complete the last line: only now it is known how many lines were lost."""
        return msgspec.structs.replace(line, dropped=self.dropped) if isinstance(line, EndLine) else line

    def _drop_queue(self) -> None:
        self.dropped += len(self._queue)
        self._queue.clear()

    def _disable(self) -> None:
        """Stop recording in a forked child, which does not have the writing thread. The parent records the run."""
        self._closed = True
        self._queue.clear()


def _encode_any_text(line: AnyLine) -> bytes:
    """Encode a line whose text is not valid Unicode: characters without a UTF-8 form become question marks."""
    text = json.dumps(msgspec.to_builtins(line, enc_hook=repr), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _open(path: Path) -> int:
    """Open the file, then truncate it, so that a file that cannot be written to keeps its content."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    with suppress(OSError):  # a pipe or a terminal cannot be truncated
        os.ftruncate(fd, 0)
    return fd


def _cannot_write(path: Path, error: Exception) -> RecordingError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RecordingError(
        f"cannot record to {path}: {reason}", advice="Name a file in a folder that exists and may be written to"
    )


def _write_all(fd: int, data: bytes) -> None:
    """Write all of the data: a disk that is nearly full takes a part of it and refuses the next part."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _after_fork() -> None:
    for recorder in list(_alive):
        recorder._disable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
