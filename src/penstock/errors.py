"""All errors that Penstock raises deliberately.

PenstockError
├── SettingError             a setting the user gave cannot be used (also a ValueError)
├── StorageError             reading from or writing to storage failed (also an OSError)
├── ShardError               a shard as a whole is unusable
│   ├── TarError             its headers are broken, hostile or cut short
│   ├── IndexFileError       its index file is corrupt or hostile
│   │   └── IndexVersionError  its index file is of another version of Penstock
│   └── PairingError         its parts do not form complete samples
├── SampleError              one sample is bad; the rest of the shard may be fine
│   ├── GuardError           refused before decoding: unsafe, oversized or unsupported
│   └── DecodeError          a decoder failed, or a checksum did not match
├── RecordingError           a recording or a log cannot be read, or a recording cannot be written
└── WorkerCrash              a worker process died in the middle of its task

Each says where it happened (shard, member, offset, stage) and, where the user can do something about it, what to do.
"""

from __future__ import annotations

from typing import Any, Self


class PenstockError(Exception):
    """The root of the tree. Fields that are not known are None; outer layers fill them in with `at`."""

    def __init__(
        self,
        reason: str,
        *,
        shard: str | None = None,
        member: str | None = None,
        offset: int | None = None,
        stage: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.shard = shard
        self.member = member
        self.offset = offset
        self.stage = stage
        self.advice = advice

    def at(
        self,
        *,
        shard: str | None = None,
        member: str | None = None,
        offset: int | None = None,
        stage: str | None = None,
    ) -> Self:
        """Set the fields that are not known yet, and keep the others."""
        self.shard = self.shard if self.shard is not None else shard
        self.member = self.member if self.member is not None else member
        self.offset = self.offset if self.offset is not None else offset
        self.stage = self.stage if self.stage is not None else stage
        return self

    def where(self) -> dict[str, str | int]:
        """Return the known fields, for a list of bad samples or a log record."""
        fields = {"shard": self.shard, "member": self.member, "offset": self.offset, "stage": self.stage}
        return {name: value for name, value in fields.items() if value is not None}

    def _place(self) -> dict[str, str | int]:
        """Return what the text shows of `where`: a stage alone helps only where data was on its path."""
        place = self.where()
        on_path = isinstance(self, StorageError | ShardError | SampleError | WorkerCrash)
        return place if on_path or place.keys() != {"stage"} else {}

    def __str__(self) -> str:
        place = ", ".join(f"{name} {printable(str(value))}" for name, value in self._place().items())
        text = printable(self.reason)
        if place:
            text = f"{text} [{place}]"
        if not self.advice:
            return text
        return f"{text}. {printable(self.advice.rstrip('.'))}{'' if self.advice.endswith('?') else '.'}"

    def __reduce__(self) -> tuple[Any, ...]:
        # errors are sent between processes, and the default would lose keyword-only fields
        return type(self), (self.reason,), self.__dict__


class SettingError(PenstockError, ValueError):
    """A setting the user gave cannot be used."""


class StorageError(PenstockError, OSError):
    """Reading from or writing to storage failed."""


class ShardError(PenstockError):
    """A shard as a whole is unusable."""


class TarError(ShardError):
    """A shard's headers are broken, hostile or cut short."""


class IndexFileError(ShardError):
    """An index file is corrupt or hostile."""


class IndexVersionError(IndexFileError):
    """An index file is of another version of Penstock: it is not damaged, but has to be rebuilt."""


class PairingError(ShardError):
    """A shard's parts do not form complete samples."""


class SampleError(PenstockError):
    """One sample is bad; the rest of the shard may be fine."""


class GuardError(SampleError):
    """Data was refused before decoding."""


class DecodeError(SampleError):
    """A decoder failed on data that the guards had accepted, or a checksum did not match."""


class RecordingError(PenstockError):
    """A recording or a log cannot be read, or a recording cannot be written."""


class WorkerCrash(PenstockError):
    """A worker process died in the middle of its task."""


def printable(text: str) -> str:
    """Return the text without control characters and terminal escapes, which names taken from data may contain."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
