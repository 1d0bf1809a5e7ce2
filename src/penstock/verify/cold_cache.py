"""A cold cache before a run: the pages of the files that it reads are dropped, or it is said that they are not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from penstock.recording.reader import Recording
from penstock.storage.mounts import identify_storage
from penstock.storage.page_cache import ReadMethod, choose_method, drop_pages

MOST_FILES = 100_000
KEPT = 0.01
"""Share of the files that may stay in the cache, and the run still be called cold."""


@dataclass(frozen=True, slots=True)
class DroppedPages:
    """What became of the cached pages."""

    files: int
    cold: bool
    why: str = ""
    """Where it is not cold."""


def files_under(paths: Iterable[Path]) -> list[Path]:
    """Regular files, of folders with all that lies in them: no more than MOST_FILES."""
    return list(islice(_walk(paths), MOST_FILES))


def files_read(recording: Recording) -> list[Path]:
    """Those the run's workers were seen to read, and all that lie beside them: workers name only a few."""
    named = [
        Path(path)
        for event in recording.events
        if event.what == "files" and isinstance(event.detail.get("paths"), list)
        for path in event.detail["paths"]
        if isinstance(path, str)
    ]
    folders = dict.fromkeys(path.parent for path in named)
    beside = (entry for folder in folders for entry in _entries(folder) if _is_file(entry))
    return list(islice(dict.fromkeys([*filter(_is_file, named), *beside]), MOST_FILES))


def drop(files: Sequence[Path]) -> DroppedPages:
    """Of all of them, and looks whether they are gone."""
    if not files:
        return DroppedPages(0, False, "which files the run reads is not known")
    if not hasattr(os, "posix_fadvise"):
        return DroppedPages(0, False, "this system does not let us drop cached pages")
    try:
        if choose_method(files[0], identify_storage(files[0])) is ReadMethod.WARM:
            return DroppedPages(0, False, f"{files[0].parent} cannot be read past the cache")
    except OSError as error:
        return DroppedPages(0, False, str(error))
    kept, why = 0, ""
    for path in files:
        try:
            if not drop_pages(path):
                kept, why = kept + 1, f"{path} stays in the cache"
        except OSError as error:
            kept, why = kept + 1, str(error)
    if kept > KEPT * len(files):
        return DroppedPages(len(files) - kept, False, f"{kept} of {len(files)} files were not dropped ({why})")
    return DroppedPages(len(files) - kept, True)


def _walk(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            for folder, _, names in os.walk(path):
                yield from (file for name in names if _is_file(file := Path(folder, name)))
        elif _is_file(path):
            yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    """A pipe would keep us waiting."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
