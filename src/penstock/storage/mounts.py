"""Identify the storage under a path: its mount, its filesystem and the disks below.

The facts come from /proc/self/mountinfo and /sys on Linux, and from psutil elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from penstock.errors import StorageError
from penstock.storage.block_devices import Disk, device_of_source, disk_under
from penstock.storage.kinds import StorageKind, kind_of_filesystem

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    mount_id: int
    parent_id: int
    device: str
    """MAJOR:MINOR. A major of 0 is anonymous: network, memory, overlay, and btrfs too."""
    root: str
    """The folder of the filesystem that is mounted; not "/" for bind mounts and subvolumes."""
    mount_point: str
    filesystem: str
    source: str
    options: tuple[tuple[str, str], ...]
    """The mount's own options, then the filesystem's, as (name, value) pairs."""

    @property
    def read_only(self) -> bool:
        """Whether the mount or its filesystem refuses writes."""
        return ("ro", "") in self.options

    def values(self, *names: str) -> list[str]:
        """Return the values of all options with any of these names, in order."""
        return [value for name, value in self.options if name in names]


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Return all mounts in the order in which they were made; malformed lines are skipped."""
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
    # A comma inside a value is escaped as \054, so the text is split first and unescaped afterwards.
    pairs = (option.partition("=") for option in text.split(",") if option)
    return tuple((name, unescape(value)) for name, _, value in pairs)


def unescape(text: str) -> str:
    r"""Undo the kernel's octal escapes: `\040` is a space."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """Return the mount of an absolute, resolved path.

    The tree of mounts is walked as the kernel walks the path, so a mount that is hidden under a later one is not
    returned. The longest prefix alone would return it.
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


__all__ = ["StorageFacts", "StorageKind", "identify_storage"]

_MAX_DEPTH = 8
_ENGINE_FILE = re.compile(r"(?P<home>.*)/containers/[0-9a-f]{64}/(hosts|hostname|resolv\.conf)")


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """The facts that the system reports about the storage under a path."""

    path: Path
    """The resolved path, or its nearest existing parent."""
    mount_point: str
    filesystem: str
    source: str
    """The source of the mount: a device, an export of a server or a bucket."""
    device: str
    """MAJOR:MINOR as the mount names it; empty if the platform has none."""
    kind: StorageKind
    rotational: bool | None
    """The kernel's flag. It can be True on virtual disks that read at gigabytes per second, so it must be measured."""
    chain: tuple[str, ...]
    """Descriptions of the layers, from the mount down to the disks; the last one says if more is not visible."""
    read_only: bool


class Partition(Protocol):
    """An element of what `psutil.disk_partitions` returns."""

    @property
    def device(self) -> str: ...
    @property
    def mountpoint(self) -> str: ...
    @property
    def fstype(self) -> str: ...
    @property
    def opts(self) -> str: ...


def identify_storage(path: str | Path) -> StorageFacts:
    """Return the facts about the storage under a path, or under its nearest existing parent."""
    existing = nearest_existing_path(Path(path))
    mountinfo = Path("/proc/self/mountinfo")
    if sys.platform == "linux" and mountinfo.exists():
        text = mountinfo.read_bytes().decode(errors="surrogateescape")
        return storage_from_mountinfo(existing, text, Path("/sys"))
    import psutil  # not needed on Linux, and slow to import

    return storage_from_partitions(existing, psutil.disk_partitions(all=True))


def nearest_existing_path(path: Path) -> Path:
    """Return the path with symlinks resolved, or the nearest of its parents that exists."""
    try:
        resolved = path.resolve()
        while not resolved.exists() and resolved != resolved.parent:
            resolved = resolved.parent
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a null byte, a dead mount
        raise StorageError(f"cannot resolve the path: {error}", shard=str(path), stage="identify") from error
    return resolved


def storage_from_mountinfo(path: Path, mountinfo: str, sys_root: Path) -> StorageFacts:
    """Return the facts from the text of mountinfo and a root of /sys; `path` is absolute and resolved."""
    mounts = parse_mountinfo(mountinfo)
    mount = mount_of(str(path), mounts)
    if mount is None:
        return StorageFacts(path, "", "", "", "", StorageKind.UNKNOWN, None, ("no mount covers the path",), False)
    below = _disk_of_mount(str(path), mount, mounts, sys_root, depth=0)
    top = f"{mount.mount_point} ({mount.filesystem}, {mount.source})"
    return StorageFacts(
        path=path,
        mount_point=mount.mount_point,
        filesystem=mount.filesystem,
        source=mount.source,
        device=mount.device,
        kind=below.kind,
        rotational=below.rotational,
        chain=(top, *below.chain),
        read_only=mount.read_only,
    )


def _disk_of_mount(path: str, mount: Mount, mounts: tuple[Mount, ...], sys_root: Path, depth: int) -> Disk:
    kind = kind_of_filesystem(mount.filesystem)
    if kind is StorageKind.OVERLAY and depth < _MAX_DEPTH:
        return _disk_of_overlay(path, mount, mounts, sys_root, depth)
    if kind is not None:
        return Disk(kind, None, ())
    device = mount.device
    if device.startswith("0:"):  # btrfs, zfs, fuseblk: the number is anonymous, the source may be a device
        device = device_of_source(mount.source, sys_root) or ""
    disk = disk_under(device, sys_root) if device else None
    if disk is None:
        return Disk(StorageKind.UNKNOWN, None, ("the disks below are not visible from here",))
    if disk.backing_file is None or depth >= _MAX_DEPTH:
        return disk
    return _disk_of_path(disk.backing_file, disk.chain, mounts, sys_root, depth)


def _disk_of_path(path: str, chain: tuple[str, ...], mounts: tuple[Mount, ...], sys_root: Path, depth: int) -> Disk:
    """Return the disk below another path: the file of a loop device, or a layer of an overlay."""
    mount = mount_of(path, mounts)
    if mount is None:
        return Disk(StorageKind.UNKNOWN, None, (*chain, "not visible from here"))
    disk = _disk_of_mount(path, mount, mounts, sys_root, depth + 1)
    step = f"{mount.mount_point} ({mount.filesystem}, {mount.source})"
    return replace(disk, chain=(*chain, step, *disk.chain))


def _disk_of_overlay(path: str, mount: Mount, mounts: tuple[Mount, ...], sys_root: Path, depth: int) -> Disk:
    inside = os.path.relpath(path, mount.mount_point)
    inside = os.path.normpath(os.path.join(mount.root.lstrip("/"), inside))
    for layer in _layers(mount):
        real = Path(layer, inside)
        # Inside a container a folder with the layer's name may exist by chance, in the overlay itself.
        if real.is_absolute() and real.exists() and mount_of(str(real.resolve()), mounts) != mount:
            return _disk_of_path(str(real.resolve()), (f"layer {layer}",), mounts, sys_root, depth)
    engine = _engine_mount(mount, mounts)
    if engine is None:
        return Disk(StorageKind.OVERLAY, None, ("its layers are outside this container and not visible",))
    disk = _disk_of_mount(engine.mount_point, engine, mounts, sys_root, depth + 1)
    hint = f"its layers are outside this container; inferred from {engine.mount_point}, stored beside them"
    return replace(disk, chain=(hint, f"{engine.filesystem}, {engine.source}", *disk.chain))


def _layers(mount: Mount) -> list[str]:
    """Return the layers, the upper one first, in the order in which the kernel searches them."""
    lowers = [part for value in mount.values("lowerdir") for part in re.split(r"(?<!\\):", value) if part]
    layers = mount.values("upperdir") + lowers + mount.values("lowerdir+", "datadir+")
    return [layer.replace("\\:", ":") for layer in layers]


def _engine_mount(overlay: Mount, mounts: tuple[Mount, ...]) -> Mount | None:
    """Return a mount from the folder of the container engine, which stores the layers there as well.

    Docker binds /etc/hosts and similar files from that folder into the container.
    """
    uppers = overlay.values("upperdir")
    for mount in mounts:
        match = _ENGINE_FILE.fullmatch(mount.root)
        if match and kind_of_filesystem(mount.filesystem) is None:
            home = match["home"]
            if any(upper.startswith(f"{home}/overlay2/") or (not home and "/overlay2/" in upper) for upper in uppers):
                return mount
    return None


def storage_from_partitions(path: Path, partitions: Iterable[Partition]) -> StorageFacts:
    """Return the facts where there is no mountinfo (macOS, Windows); kinds of disks are not distinguished there."""
    text = os.path.normcase(str(path))
    covering = []
    for partition in partitions:
        point = os.path.normcase(partition.mountpoint).rstrip("/\\")
        if text == point or text.startswith((point + "/", point + "\\")):
            covering.append((len(point), partition))
    if not covering:
        return StorageFacts(path, "", "", "", "", StorageKind.UNKNOWN, None, ("no mount covers the path",), False)
    _, chosen = max(covering, key=lambda item: item[0])
    options = chosen.opts.split(",")
    kind = kind_of_filesystem(chosen.fstype.lower())
    if kind is None:
        kind = StorageKind.SMB if "remote" in options else StorageKind.UNKNOWN
    return StorageFacts(
        path=path,
        mount_point=chosen.mountpoint,
        filesystem=chosen.fstype,
        source=chosen.device,
        device="",
        kind=kind,
        rotational=None,
        chain=(f"{chosen.mountpoint} ({chosen.fstype}, {chosen.device})",),
        read_only="ro" in options,
    )
