"""The recordings of all ranks of one run, found beside each other."""

from __future__ import annotations

import glob
import re
from dataclasses import replace
from pathlib import Path

from penstock.errors import RecordingError, printable
from penstock.recording.reader import Recording, load

APART_S = 3600.0
"""Ranks of one run begin within minutes; a file that is further off was left by another run."""


def load_ranks(path: str | Path) -> tuple[Recording, ...]:
    """The recording and those of the other ranks beside it (run.jsonl, run.rank1.jsonl, …), by rank.

    What is missing or left from another run is noted in the first of them.
    """
    first = load(path)
    found, notes = {first.run.rank: first}, []
    for beside in _beside(Path(path)):
        try:
            other = load(beside)
        except RecordingError as error:
            notes.append(str(error))
            continue
        apart_s = abs(other.run.began_unix_s - first.run.began_unix_s)
        if other.run.world_size != first.run.world_size or other.run.rank in found or apart_s > APART_S:
            notes.append(f"{printable(beside.name)} is of another run and was left out")
            continue
        found[other.run.rank] = other
    absent = first.run.world_size - len(found)
    if absent > 0:
        notes.append(f"the recordings of {absent} of {first.run.world_size} ranks are missing")
    lowest, *others = (found[rank] for rank in sorted(found))
    return replace(lowest, notes=(*lowest.notes, *notes)), *others


def _beside(path: Path) -> list[Path]:
    name, compressed = path.name.removesuffix(".gz"), path.name.endswith(".gz")
    stem, dot, suffix = name.rpartition(".")
    pattern = f"{glob.escape(stem or suffix)}.rank*{glob.escape(dot + suffix if stem else '')}{'.gz' * compressed}"
    return sorted(beside for beside in path.parent.glob(pattern) if re.search(r"\.rank\d{1,6}(\.|$)", beside.name))
