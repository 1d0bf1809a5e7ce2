"""Which mount a path lies on, read from /proc/self/mountinfo. Pure: text in, mounts out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    mount_id: int
    parent_id: int
    device: str
    """MAJOR:MINOR. A major of 0 is anonymous: network, memory, overlay, and btrfs too."""
    root: str
    """The folder of the filesystem that is mounted here; not "/" for bind mounts and subvolumes."""
    mount_point: str
    filesystem: str
    source: str
    options: tuple[tuple[str, str], ...]
    """The mount's own options, then the filesystem's, as (name, value) pairs."""

    @property
    def read_only(self) -> bool:
        """Whether the mount or the filesystem under it refuses writes."""
        return ("ro", "") in self.options

    def values(self, *names: str) -> list[str]:
        """Every value given under any of these option names, in order."""
        return [value for name, value in self.options if name in names]


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """All mounts, in the order they were made; lines that do not have mountinfo's shape are left out."""
    mounts = (_parse_line(line) for line in text.split("\n"))
    return tuple(mount for mount in mounts if mount is not None)


def _parse_line(line: str) -> Mount | None:
    # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    before, separator, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not separator or len(left) < 6 or len(right) < 2 or not (left[0].isdigit() and left[1].isdigit()):
        return None
    return Mount(
        mount_id=int(left[0]),
        parent_id=int(left[1]),
        device=left[2],
        root=unescape(left[3]),
        mount_point=unescape(left[4]),
        filesystem=right[0],
        source=unescape(right[1]),
        options=_parse_options(left[5]) + _parse_options(right[2] if len(right) > 2 else ""),
    )


def _parse_options(text: str) -> tuple[tuple[str, str], ...]:
    # A comma inside a value arrives as \054, so split first and unescape after.
    pairs = (option.partition("=") for option in text.split(",") if option)
    return tuple((name, unescape(value)) for name, _, value in pairs)


def unescape(text: str) -> str:
    r"""Undo the kernel's octal escapes: `\040` is a space."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount an absolute, resolved path lies on.

    Walks the tree of mounts as the kernel walks the path, so a mount hidden under a later one is not
    taken for the answer, which the longest prefix alone would do.
    """
    known = {mount.mount_id for mount in mounts}
    roots = [m for m in mounts if m.parent_id not in known or m.parent_id == m.mount_id]
    covering = [m for m in roots if _covers(m.mount_point, path)]
    if not covering:
        return None
    current = _last_of_depth(covering, max(map(_depth, covering)))
    passed: set[int] = set()
    while True:
        passed.add(current.mount_id)
        children = [m for m in mounts if m.parent_id == current.mount_id and m.mount_id not in passed]
        crossed = [m for m in children if _covers(m.mount_point, path)]
        if not crossed:
            return current
        current = _last_of_depth(crossed, min(map(_depth, crossed)))


def _last_of_depth(mounts: list[Mount], depth: int) -> Mount:
    return [mount for mount in mounts if _depth(mount) == depth][-1]


def _depth(mount: Mount) -> int:
    return len(PurePosixPath(mount.mount_point).parts)


def _covers(mount_point: str, path: str) -> bool:
    return path == mount_point or path.startswith(mount_point.rstrip("/") + "/")
