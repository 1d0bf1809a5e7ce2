"""The recording of each process of a training: which rank the process has, and which file it writes."""

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
    """Return this process's rank and the number of ranks, by torch.distributed or else by the launcher's variables.

    Without a launcher, and with variables that make no sense, it is (0, 1): a wrong variable must not stop a training.
    RANK counts even without WORLD_SIZE, because ranks that know only their own number must not write to one file.
    """
    try:
        found = global_rank()
    except SettingError:
        rank = os.environ.get("RANK", "")
        return (int(rank), int(rank) + 1) if rank.isdecimal() else (0, 1)
    return (0, 1) if found is None else (found.rank, found.world_size)


def own_recording(path: str | Path | None) -> Path | None:
    """Return the file of this rank where all ranks were given the same path; None for None."""
    return None if path is None else recording_of(Path(path), rank_and_world()[0])


def recording_of(path: Path, rank: int) -> Path:
    """Return the file of a rank: run.jsonl of rank 0, run.rank3.jsonl of rank 3."""
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def claim(folder: Path, path: Path, rank: int) -> Path:
    """Return a recording that no other process of the run writes to.

    Two processes may have the same rank, as in a sweep or after a restart; the second one gets another file name. The
    claim is a file in the run's folder, which shows the parent process where all recordings are.
    """
    recording = recording_of(path, rank)
    for attempt in range(1, 1000):
        try:
            with open(folder / f"{recording.name}.claim", "x") as file:
                file.write(f"{os.getpid()}\n{recording}")
            return recording
        except FileExistsError:
            suffix = f"-{attempt}" if attempt > 1 else ""
            recording = path.with_name(f"{path.stem}.pid{os.getpid()}{suffix}{path.suffix}")
    raise FileExistsError(f"{recording} and all similar names are taken")


def claims(folder: Path) -> list[tuple[int, Path]]:
    """Return the process id and the recording of every claim, the oldest first."""
    found = sorted(folder.glob("*.claim"), key=lambda file: file.stat().st_mtime_ns)
    return [(int(pid), Path(path)) for pid, _, path in (file.read_text().partition("\n") for file in found)]


TAIL_BYTES = 64 * 1024
"""Bytes at the end of a recording in which its last line is searched for."""
_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


def write_end_marker(path: Path, code: int) -> None:
    """Put the exit code of a script into the last line of its recording, which is added if `os._exit` left it out.

    `code` is minus the signal's number if a signal ended the script. A killed script gets no end line, unless the
    signal was Ctrl-C.
    """
    if (code < 0 and code != -signal.SIGINT) or not path.is_file():  # reading a device or a pipe might never end
        return
    with suppress(OSError), open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read(TAIL_BYTES)
        last_line_start = tail.rstrip(b"\n").rfind(b"\n") + 1
        last_line = _decode(tail[last_line_start:])
        exit_code = 128 - code if code < 0 else code
        if isinstance(last_line, EndLine):
            file.seek(last_line_start - len(tail), os.SEEK_END)
            file.truncate()
            end = msgspec.structs.replace(last_line, exit_code=exit_code)
        else:
            file.seek(0)
            how = "interrupted" if code < 0 else "raised" if code else "done"
            end = EndLine(at_s=_seconds_since_start(_decode(file.readline(TAIL_BYTES))), exit_code=exit_code, how=how)
            file.seek(0, os.SEEK_END)
            file.write(b"" if tail.endswith(b"\n") else b"\n")
        file.write(msgspec.json.encode(end) + b"\n")


def has_end_marker(path: Path) -> bool:
    """Return whether the last line of a recording is its end; it is missing if recording stopped before the script."""
    with suppress(OSError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return isinstance(_decode(file.read(TAIL_BYTES).rstrip(b"\n").rpartition(b"\n")[2]), EndLine)
    return False


def _decode(line: bytes) -> AnyLine | None:
    with suppress(msgspec.DecodeError):
        return _decoder.decode(line)
    return None


def _seconds_since_start(first_line: AnyLine | None) -> float:
    return max(0.0, time.time() - first_line.began_unix_s) if isinstance(first_line, RunLine) else 0.0
