"""What disk is under a block device, read from /sys: partitions, dm, md, loop. Pure over a given root."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from penstock.storage.kinds import StorageKind, slowest_kind

_MEMORY = re.compile(r"(zram|ram|pmem)\d")
_NETWORK = re.compile(r"(nbd|rbd|drbd)\d")
_VIRTUAL = re.compile(r"(vd|xvd)[a-z]")
_VIRTUAL_VENDORS = ("QEMU", "VMware", "Msft", "Google", "Xen", "Amazon Elastic Block Store", "nvme_card-pd")
_DM_KINDS = {"CRYPT": "dm-crypt", "LVM": "LVM", "mpath": "multipath", "RAID": "dm-raid"}
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Disk:
    """The physical (or virtual) disks that serve a block device."""

    kind: StorageKind
    rotational: bool | None
    """The kernel's flag: True when any disk below claims to spin. Often wrong on virtual disks."""
    chain: tuple[str, ...]
    """From the device down to the disks, in words."""
    backing_file: str | None = None
    """For a loop device: the file that holds its bytes; the answer lies on that file's own mount."""


def disk_under(device: str, sys_root: Path, depth: int = 0) -> Disk | None:
    """The disk under MAJOR:MINOR, or None where /sys does not know that device."""
    entry = sys_root / "dev" / "block" / device
    if depth > _MAX_DEPTH or not entry.exists():
        return None
    folder = entry.resolve()
    if (folder / "partition").exists():
        parent = _disk_of_folder(folder.parent, sys_root, depth + 1)
        return _combine_disks(f"partition {folder.name}", [parent])
    return _disk_of_folder(folder, sys_root, depth)


def device_of_source(source: str, sys_root: Path) -> str | None:
    """MAJOR:MINOR of a mount source such as /dev/mapper/root, for filesystems that hide it (btrfs)."""
    for candidate in (source, os.path.realpath(source)):
        if not candidate.startswith("/dev/"):
            continue
        name = candidate.removeprefix("/dev/").removeprefix("mapper/").replace("/", "!")
        block = sys_root / "class" / "block"
        if number := _read_text(block / name / "dev"):
            return number
        for mapped in sorted(block.glob("dm-*")):
            if _read_text(mapped / "dm" / "name") == name:
                return _read_text(mapped / "dev")
    return None


def _disk_of_folder(folder: Path, sys_root: Path, depth: int) -> Disk:
    label = _label(folder)
    slaves = sorted((folder / "slaves").iterdir()) if (folder / "slaves").is_dir() else []
    if slaves:
        below = [disk_under(_read_text(slave / "dev") or "", sys_root, depth + 1) for slave in slaves]
        return _combine_disks(label, [disk for disk in below if disk is not None])
    if backing := _read_text(folder / "loop" / "backing_file"):
        return Disk(StorageKind.UNKNOWN, None, (f"{label} on the file {backing}",), backing_file=backing)
    flag = _read_text(folder / "queue" / "rotational")
    rotational = None if flag not in ("0", "1") else flag == "1"
    return Disk(_kind(folder, rotational), rotational, (label,))


def _combine_disks(label: str, disks: list[Disk]) -> Disk:
    """One device over several: as slow as the slowest of them."""
    if not disks:
        return Disk(StorageKind.UNKNOWN, None, (label, "nothing visible below it"))
    flags = [disk.rotational for disk in disks if disk.rotational is not None]
    chains = tuple(dict.fromkeys(step for disk in disks for step in disk.chain))
    backing = next((disk.backing_file for disk in disks if disk.backing_file), None)
    kind = slowest_kind(disk.kind for disk in disks)
    return Disk(kind, any(flags) if flags else None, (label, *chains), backing)


def _kind(folder: Path, rotational: bool | None) -> StorageKind:
    name = folder.name
    if _MEMORY.match(name):
        return StorageKind.RAM
    if _NETWORK.match(name) or _transport(folder) not in (None, "pcie"):
        return StorageKind.NETWORK_DISK
    if _VIRTUAL.match(name) or _vendor_and_model(folder).startswith(_VIRTUAL_VENDORS):
        return StorageKind.VIRTUAL_DISK
    if name.startswith("nvme"):
        return StorageKind.NVME
    if rotational is None:
        return StorageKind.UNKNOWN
    return StorageKind.HDD if rotational else StorageKind.SSD


def _label(folder: Path) -> str:
    name = folder.name
    if name.startswith("dm-"):
        prefix = (_read_text(folder / "dm" / "uuid") or "").partition("-")[0]
        return f"{name} ({_DM_KINDS.get(prefix, 'device mapper')} {_read_text(folder / 'dm' / 'name') or '?'})"
    if level := _read_text(folder / "md" / "level"):
        return f"{name} ({level})"
    if transport := _transport(folder):
        return f"{name} ({_vendor_and_model(folder) or 'NVMe'}, over {transport})"
    maker = _vendor_and_model(folder)
    return f"{name} ({maker})" if maker else name


def _vendor_and_model(folder: Path) -> str:
    """Vendor and model as the disk tells them; virtio gives a PCI number, which says nothing."""
    words = [_read_text(folder / "device" / name) or "" for name in ("vendor", "model")]
    return " ".join(word for word in words if word and not word.startswith("0x"))


def _transport(folder: Path) -> str | None:
    return _read_text(folder / "device" / "transport") if folder.name.startswith("nvme") else None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
