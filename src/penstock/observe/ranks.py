"""Which of the processes of a training this one is, and which file is its own."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.core.launch import place
from penstock.errors import SettingError


def rank_and_world() -> tuple[int, int]:
    """As torch.distributed has it, else as the launcher says, else alone: nonsense in its words keeps nobody.

    Half of what a launcher says is enough here: ranks that know only their number must not write to one file.
    """
    try:
        found = place()
    except SettingError:
        rank = os.environ.get("RANK", "")
        return (int(rank), int(rank) + 1) if rank.isdecimal() else (0, 1)
    return (0, 1) if found is None else (found.rank, found.of)


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
