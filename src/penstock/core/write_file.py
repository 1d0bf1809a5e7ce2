"""Files that are written whole or not at all: a full disk or a crash leaves none cut short under its name."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from penstock.errors import SettingError, StorageError


def replace_file(path: Path, data: bytes) -> None:
    """Write a file under a temporary name in its folder, then rename it; OSError leaves an earlier file as it was.

    An earlier file's permissions are kept.
    """
    temporary = path.with_name(f".{path.name[:100]}.{token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o7777)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_result(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file that the user has named; text is encoded as UTF-8.

    What is not a plain file, such as /dev/stdout or a pipe, is written directly. A symbolic link stays, and the file
    that it names is replaced. A name that cannot be written is a SettingError, a full or failing disk a StorageError.
    """
    content = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            replace_file(target, content)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, ValueError) as error:
        raise SettingError(
            f"cannot write {os.fspath(path)}: {_reason(error)}",
            advice="Name a file in a folder that exists and may be written to",
        ) from error
    except OSError as error:
        raise StorageError(f"cannot write {os.fspath(path)}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
