"""The user's cache folder for small files of Penstock: measurements, lock files, indexes of read-only shards."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.core.write_file import replace_file
from penstock.errors import SettingError, StorageError


def cache_dir(*parts: str) -> Path:
    """Return a private, writable folder below the user's cache, for example `cache_dir("index")`; create it if needed.

    The folder that `$PENSTOCK_CACHE` names is used, or refused with an error. Without it, that is the cache folder of
    the platform, or a private one in the temporary directory where the home directory cannot be written.
    """
    for part in parts:
        if part in ("", ".", "..") or Path(part).name != part:
            raise SettingError(f"{part!r} is not a plain folder name", stage="cache")
    chosen = os.environ.get("PENSTOCK_CACHE")
    if chosen:
        return _required(Path(chosen).expanduser(), parts)
    try:
        return _writable_folder(_platform_cache(), parts)
    except (OSError, RuntimeError):  # RuntimeError: there is no home at all
        return _required(_temporary_cache(), parts)


def _platform_cache() -> Path:
    """Return the cache folder that is usual on this platform."""
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():  # the XDG rules say that a relative one is to be ignored
        return Path(xdg) / "penstock"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "penstock"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "penstock" / "cache"
    return Path.home() / ".cache" / "penstock"


def _temporary_cache() -> Path:
    """Return a folder of this user. The temporary directory is shared, so a folder of another user is refused."""
    uid = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(tempfile.gettempdir()) / f"penstock-{uid}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        raise StorageError(
            f"{folder} belongs to another user",
            stage="cache",
            advice="Set PENSTOCK_CACHE to a folder of your own",
        )
    return folder


def _required(base: Path, parts: tuple[str, ...]) -> Path:
    try:
        return _writable_folder(base, parts)
    except OSError as error:
        raise StorageError(
            f"cannot use {base} as a cache folder: {error}",
            stage="cache",
            advice="Set PENSTOCK_CACHE to a folder of your own that can be written",
        ) from error


def _writable_folder(base: Path, parts: tuple[str, ...]) -> Path:
    base.parent.mkdir(parents=True, exist_ok=True)
    folder = base
    folder.mkdir(mode=0o700, exist_ok=True)
    for part in parts:
        folder = folder / part
        folder.mkdir(mode=0o700, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder


class CacheRecord(Protocol):
    """A stored result, with the key it belongs to."""

    @property
    def key(self) -> Any:
        """The key, a dataclass of plain values."""
        ...


RecordT = TypeVar("RecordT", bound=CacheRecord)


def load_record(folder: str, key: Any, kind: type[RecordT], max_bytes: int) -> RecordT | None:
    """Return the record of that key; None where there is none, or where the file is corrupt or of another key."""
    try:
        with open(_file(folder, key), "rb") as stream:
            data = stream.read(max_bytes + 1)
        record = msgspec.json.decode(data, type=kind) if len(data) <= max_bytes else None
    except (OSError, StorageError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return record if record is not None and record.key == key else None


def store_record(folder: str, record: CacheRecord) -> None:
    """Store the record; if that fails, the next run measures again and nothing else is lost."""
    try:
        replace_file(_file(folder, record.key), msgspec.json.encode(record))
    except (OSError, StorageError):
        return


def _file(folder: str, key: Any) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:32]
    return cache_dir(folder) / f"{digest}.json"
