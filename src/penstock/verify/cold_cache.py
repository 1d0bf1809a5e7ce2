"""A cold page cache before a run: drop the pages of the files that it reads, and report whether they are gone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from penstock.recording.reader import Recording
from penstock.storage.mounts import identify_storage
from penstock.storage.page_cache import ReadMethod, choose_method, drop_pages

MAX_FILES = 100_000
MAX_KEPT_SHARE = 0.01
"""Share of the files that may stay in the cache for a run to count as cold."""


@dataclass(frozen=True, slots=True)
class DroppedPages:
    """The result of dropping cached pages."""

    files: int
    """Files whose pages were dropped."""
    cold: bool
    why: str = ""
    """The reason if the cache is not cold."""


def files_under(paths: Iterable[Path]) -> list[Path]:
    """Return the regular files among the paths and in their folders, MAX_FILES at most."""
    return list(islice(_walk(paths), MAX_FILES))


def files_read(recording: Recording) -> list[Path]:
    """Return the files that the workers were recorded to read, and all files in the same folders.

    Workers record only a few file names.
    """
    recorded = [
        Path(path)
        for event in recording.events
        if event.what == "files" and isinstance(event.detail.get("paths"), list)
        for path in event.detail["paths"]
        if isinstance(path, str)
    ]
    folders = dict.fromkeys(path.parent for path in recorded)
    siblings = (entry for folder in folders for entry in _entries(folder) if _is_file(entry))
    return list(islice(dict.fromkeys([*filter(_is_file, recorded), *siblings]), MAX_FILES))


def drop_files(files: Sequence[Path]) -> DroppedPages:
    """Drop the cached pages of all files, and check whether they are gone."""
    if not files:
        return DroppedPages(0, False, "it is not known which files the run reads")
    if not hasattr(os, "posix_fadvise"):
        return DroppedPages(0, False, "this system cannot drop cached pages")
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
    if kept > MAX_KEPT_SHARE * len(files):
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
    """Return whether it is a regular file: reading a pipe would block."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
