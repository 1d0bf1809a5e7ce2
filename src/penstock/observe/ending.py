"""The last line of a recording, by whoever started the script: only there the exit code is known."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.recording.lines import AnyLine, End, Run

TAIL_BYTES = 64 * 1024
_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


def tell_end(path: Path, code: int) -> None:
    """Correct the recording's end, or write the one that an `os._exit` left out; a killed script has none.

    `code` is minus the signal's number if one killed it.
    """
    if (code < 0 and code != -signal.SIGINT) or not path.is_file():  # a device or a pipe may never end
        return
    with suppress(OSError), open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read(TAIL_BYTES)
        start = tail.rstrip(b"\n").rfind(b"\n") + 1
        last = _decode(tail[start:])
        exit_code = 128 - code if code < 0 else code
        if isinstance(last, End):
            file.seek(start - len(tail), os.SEEK_END)
            file.truncate()
            end = msgspec.structs.replace(last, exit_code=exit_code)
        else:
            file.seek(0)
            how = "interrupted" if code < 0 else "raised" if code else "done"
            end = End(at_s=_since(_decode(file.readline(TAIL_BYTES))), exit_code=exit_code, how=how)
            file.seek(0, os.SEEK_END)
            file.write(b"" if tail.endswith(b"\n") else b"\n")
        file.write(msgspec.json.encode(end) + b"\n")


def _decode(line: bytes) -> AnyLine | None:
    with suppress(msgspec.DecodeError):
        return _decoder.decode(line)
    return None


def _since(first: AnyLine | None) -> float:
    return max(0.0, time.time() - first.began_unix_s) if isinstance(first, Run) else 0.0
