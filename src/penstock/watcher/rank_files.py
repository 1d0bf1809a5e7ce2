"""Which of the processes of a training this one is, and which file is its own."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.core.ranks import global_rank
from penstock.errors import SettingError
from penstock.recording.format import AnyLine, EndLine, RunLine


def rank_and_world() -> tuple[int, int]:
    """As torch.distributed has it, else as the launcher says, else alone: nonsense in its words keeps nobody.

    Half of what a launcher says is enough here: ranks that know only their number must not write to one file.
    """
    try:
        found = global_rank()
    except SettingError:
        rank = os.environ.get("RANK", "")
        return (int(rank), int(rank) + 1) if rank.isdecimal() else (0, 1)
    return (0, 1) if found is None else (found.rank, found.world_size)


def own_recording(path: str | Path | None) -> Path | None:
    """Of this rank, where all ask for the same file."""
    return None if path is None else recording_of(Path(path), rank_and_world()[0])


def recording_of(path: Path, rank: int) -> Path:
    """Beside the first rank's run.jsonl: run.rank3.jsonl."""
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def claim(folder: Path, path: Path, rank: int) -> Path:
    """The recording that is this process's alone: two of the same rank, as in a sweep or after a restart, never mix.

    The claim is a file in the run's own folder, so that whoever started the run finds all recordings.
    """
    mine = recording_of(path, rank)
    for again in range(1, 1000):
        try:
            with open(folder / f"{mine.name}.claim", "x") as file:
                file.write(f"{os.getpid()}\n{mine}")
            return mine
        except FileExistsError:
            mine = path.with_name(f"{path.stem}.pid{os.getpid()}{f'-{again}' if again > 1 else ''}{path.suffix}")
    raise FileExistsError(f"{mine} and all like it are taken")


def claims(folder: Path) -> list[tuple[int, Path]]:
    """All that were claimed, oldest first: process, recording."""
    found = sorted(folder.glob("*.claim"), key=lambda file: file.stat().st_mtime_ns)
    return [(int(pid), Path(path)) for pid, _, path in (file.read_text().partition("\n") for file in found)]


TAIL_BYTES = 64 * 1024
_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


def write_end_marker(path: Path, code: int) -> None:
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
        if isinstance(last, EndLine):
            file.seek(start - len(tail), os.SEEK_END)
            file.truncate()
            end = msgspec.structs.replace(last, exit_code=exit_code)
        else:
            file.seek(0)
            how = "interrupted" if code < 0 else "raised" if code else "done"
            end = EndLine(at_s=_since(_decode(file.readline(TAIL_BYTES))), exit_code=exit_code, how=how)
            file.seek(0, os.SEEK_END)
            file.write(b"" if tail.endswith(b"\n") else b"\n")
        file.write(msgspec.json.encode(end) + b"\n")


def _decode(line: bytes) -> AnyLine | None:
    with suppress(msgspec.DecodeError):
        return _decoder.decode(line)
    return None


def _since(first: AnyLine | None) -> float:
    return max(0.0, time.time() - first.began_unix_s) if isinstance(first, RunLine) else 0.0
