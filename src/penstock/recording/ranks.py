"""Loading the recordings of all ranks of one run, which lie in one folder."""

from __future__ import annotations

import glob
import re
from dataclasses import replace
from pathlib import Path

from penstock.errors import RecordingError, printable
from penstock.recording.reader import Recording, load

START_SPREAD_MAX_S = 3600.0
"""Ranks of one run start within minutes of each other. A recording that starts later or earlier is of another run."""


def load_ranks(path: str | Path) -> tuple[Recording, ...]:
    """Load a recording and those of the other ranks beside it (run.jsonl, run.rank1.jsonl, …), ordered by rank.

    Notes about ranks that are missing and files of other runs are added to the first recording.
    """
    first = load(path)
    found, notes = {first.run.rank: first}, []
    for neighbour in _rank_files_beside(Path(path)):
        try:
            other = load(neighbour)
        except RecordingError as error:
            notes.append(str(error))
            continue
        start_spread_s = abs(other.run.began_unix_s - first.run.began_unix_s)
        same_world = other.run.world_size == first.run.world_size
        if not same_world or other.run.rank in found or start_spread_s > START_SPREAD_MAX_S:
            notes.append(f"{printable(neighbour.name)} is of another run and was left out")
            continue
        found[other.run.rank] = other
    missing = first.run.world_size - len(found)
    if missing > 0:
        notes.append(f"the recordings of {missing} of {first.run.world_size} ranks are missing")
    lowest, *others = (found[rank] for rank in sorted(found))
    return replace(lowest, notes=(*lowest.notes, *notes)), *others


def _rank_files_beside(path: Path) -> list[Path]:
    name, compressed = path.name.removesuffix(".gz"), path.name.endswith(".gz")
    stem, dot, suffix = name.rpartition(".")
    pattern = f"{glob.escape(stem or suffix)}.rank*{glob.escape(dot + suffix if stem else '')}{'.gz' * compressed}"
    return sorted(file for file in path.parent.glob(pattern) if re.search(r"\.rank\d{1,6}(\.|$)", file.name))
