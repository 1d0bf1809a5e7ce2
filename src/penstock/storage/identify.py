"""What a path lies on: its mount, its filesystem and the disks below, from mountinfo and /sys."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from penstock.errors import StorageError
from penstock.storage.block_devices import Disk, device_of_source, disk_under
from penstock.storage.kinds import StorageKind, kind_of_filesystem
from penstock.storage.mounts import Mount, mount_of, parse_mountinfo

__all__ = ["StorageFacts", "StorageKind", "identify_storage"]

_MAX_DEPTH = 8
_ENGINE_FILE = re.compile(r"(?P<home>.*)/containers/[0-9a-f]{64}/(hosts|hostname|resolv\.conf)")


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What the system claims about the storage under a path."""

    path: Path
    """The resolved path, or its nearest existing parent."""
    mount_point: str
    filesystem: str
    source: str
    """What is mounted: a device, a server's export, a bucket."""
    device: str
    """MAJOR:MINOR as the mount names it; empty where the platform has none."""
    kind: StorageKind
    rotational: bool | None
    """The kernel's flag. It says True on virtual disks that read at gigabytes a second: measure."""
    chain: tuple[str, ...]
    """From the mount down to the disks, in words; says so where the view ends."""
    read_only: bool


class Partition(Protocol):
    """What `psutil.disk_partitions` gives."""

    @property
    def device(self) -> str: ...
    @property
    def mountpoint(self) -> str: ...
    @property
    def fstype(self) -> str: ...
    @property
    def opts(self) -> str: ...


def identify_storage(path: str | Path) -> StorageFacts:
    """What `path` lies on; a path that is not there yet is judged by its nearest existing parent."""
    found = nearest_existing_path(Path(path))
    mountinfo = Path("/proc/self/mountinfo")
    if sys.platform == "linux" and mountinfo.exists():
        text = mountinfo.read_bytes().decode(errors="surrogateescape")
        return storage_from_mountinfo(found, text, Path("/sys"))
    import psutil  # not needed on Linux, and slow to import

    return storage_from_partitions(found, psutil.disk_partitions(all=True))


def nearest_existing_path(path: Path) -> Path:
    """The path with symlinks resolved, or the first of its parents that exists."""
    try:
        resolved = path.resolve()
        while not resolved.exists() and resolved != resolved.parent:
            resolved = resolved.parent
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a null byte, a dead mount
        raise StorageError(f"cannot resolve the path: {error}", shard=str(path), stage="identify") from error
    return resolved


def storage_from_mountinfo(path: Path, mountinfo: str, sys_root: Path) -> StorageFacts:
    """`identify_storage` over given texts: `path` is absolute and resolved."""
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
    """Go on below another path: a loop device's file, a layer of an overlay."""
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
        # Inside a container a layer's name may exist by chance, in the overlay itself.
        if real.is_absolute() and real.exists() and mount_of(str(real.resolve()), mounts) != mount:
            return _disk_of_path(str(real.resolve()), (f"layer {layer}",), mounts, sys_root, depth)
    engine = _engine_mount(mount, mounts)
    if engine is None:
        return Disk(StorageKind.OVERLAY, None, ("its layers are outside this container and not visible",))
    disk = _disk_of_mount(engine.mount_point, engine, mounts, sys_root, depth + 1)
    hint = f"its layers are outside this container; inferred from {engine.mount_point}, kept beside them"
    return replace(disk, chain=(hint, f"{engine.filesystem}, {engine.source}", *disk.chain))


def _layers(mount: Mount) -> list[str]:
    """Upper first: that is the order in which the kernel looks."""
    lowers = [part for value in mount.values("lowerdir") for part in re.split(r"(?<!\\):", value) if part]
    layers = mount.values("upperdir") + lowers + mount.values("lowerdir+", "datadir+")
    return [layer.replace("\\:", ":") for layer in layers]


def _engine_mount(overlay: Mount, mounts: tuple[Mount, ...]) -> Mount | None:
    """Docker binds /etc/hosts and its like from its own folder, where it keeps the layers as well."""
    uppers = overlay.values("upperdir")
    for mount in mounts:
        match = _ENGINE_FILE.fullmatch(mount.root)
        if match and kind_of_filesystem(mount.filesystem) is None:
            home = match["home"]
            if any(upper.startswith(f"{home}/overlay2/") or (not home and "/overlay2/" in upper) for upper in uppers):
                return mount
    return None


def storage_from_partitions(path: Path, partitions: Iterable[Partition]) -> StorageFacts:
    """`identify_storage` where there is no mountinfo: macOS, Windows. Disks of these are not told apart."""
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
