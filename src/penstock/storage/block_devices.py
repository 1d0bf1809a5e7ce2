"""Find the physical disks below a block device (partition, dm, md, loop) in /sys.

The functions take the root of /sys as an argument, so that tests can build their own.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from penstock.storage.kinds import StorageKind, slowest_kind

_MEMORY = re.compile(r"(zram|ram|pmem)\d")
_NETWORK = re.compile(r"(nbd|rbd|drbd)\d")
_VIRTUAL = re.compile(r"(vd|xvd)[a-z]")
_VIRTUAL_VENDORS = (
    "QEMU",
    "VMware",
    "Msft",
    "Google",
    "Xen",
    "Amazon Elastic Block Store",
    "nvme_card-pd",  # glossary: allow
)
_DM_KINDS = {"CRYPT": "dm-crypt", "LVM": "LVM", "mpath": "multipath", "RAID": "dm-raid"}
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Disk:
    """The physical or virtual disks below a block device."""

    kind: StorageKind
    rotational: bool | None
    """The kernel's flag: True if any disk below reports that it rotates. Often wrong on virtual disks."""
    chain: tuple[str, ...]
    """Descriptions of the layers, from the device down to the disks."""
    backing_file: str | None = None
    """The file that holds the bytes of a loop device; the disks are those of that file's mount."""


def disk_under(device: str, sys_root: Path, depth: int = 0) -> Disk | None:
    """Return the disk below the device MAJOR:MINOR, or None if /sys does not list that device."""
    entry = sys_root / "dev" / "block" / device
    if depth > _MAX_DEPTH or not entry.exists():
        return None
    folder = entry.resolve()
    if (folder / "partition").exists():
        parent = _disk_of_folder(folder.parent, sys_root, depth + 1)
        return _combine_disks(f"partition {folder.name}", [parent])
    return _disk_of_folder(folder, sys_root, depth)


def device_of_source(source: str, sys_root: Path) -> str | None:
    """Return MAJOR:MINOR of a mount source such as /dev/mapper/root, for filesystems that hide it (btrfs)."""
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
    """Return one disk that stands for several; it is as slow as the slowest of them."""
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
    """Return vendor and model as the disk reports them; virtio's PCI numbers are left out, since they say nothing."""
    words = [_read_text(folder / "device" / name) or "" for name in ("vendor", "model")]
    return " ".join(word for word in words if word and not word.startswith("0x"))


def _transport(folder: Path) -> str | None:
    return _read_text(folder / "device" / "transport") if folder.name.startswith("nvme") else None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
