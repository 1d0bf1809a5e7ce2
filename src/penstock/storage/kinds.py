"""The kinds of storage Penstock tells apart, and what each filesystem's name says."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class StorageKind(StrEnum):
    """What a path lies on, as far as the system tells: a claim, where `penstock.probe.storage` measures."""

    NVME = "nvme"
    SSD = "ssd"
    HDD = "hdd"
    VIRTUAL_DISK = "virtual disk"
    """A disk a hypervisor shows: what is below it cannot be seen from here."""
    NETWORK_DISK = "network disk"
    """A block device over a network: nbd, rbd, drbd, NVMe over fabrics."""
    NFS = "nfs"
    SMB = "smb"
    LUSTRE = "lustre"
    CLUSTER = "cluster"
    """Another parallel filesystem: Ceph, GPFS, BeeGFS, Weka."""
    FUSE = "fuse"
    OBJECT_STORE = "object store"
    """A bucket or a web server, read by requests for ranges."""
    HOST_SHARE = "host share"
    """A folder of the host shown to a virtual machine: virtiofs, 9p, vboxsf."""
    TMPFS = "tmpfs"
    RAM = "ram"
    """A block device in memory: zram, brd, pmem."""
    OVERLAY = "overlay"
    """An overlay of which nothing below can be seen."""
    UNKNOWN = "unknown"

    @property
    def in_memory(self) -> bool:
        """Reads never reach a disk or a network: cold and warm are the same."""
        return self in (StorageKind.TMPFS, StorageKind.RAM)

    @property
    def remote(self) -> bool:
        """Reads cross a network: latency is hidden by reads in flight, and a server's cache may answer."""
        return self in _REMOTE


_REMOTE = (
    StorageKind.NETWORK_DISK,
    StorageKind.NFS,
    StorageKind.SMB,
    StorageKind.LUSTRE,
    StorageKind.CLUSTER,
    StorageKind.OBJECT_STORE,
)

_SLOWEST_FIRST = (
    StorageKind.HDD,
    StorageKind.NETWORK_DISK,
    StorageKind.UNKNOWN,
    StorageKind.VIRTUAL_DISK,
    StorageKind.SSD,
    StorageKind.NVME,
    StorageKind.RAM,
)

_BY_FILESYSTEM = {
    "nfs": StorageKind.NFS,
    "nfs4": StorageKind.NFS,
    "cifs": StorageKind.SMB,
    "smb3": StorageKind.SMB,
    "smbfs": StorageKind.SMB,
    "lustre": StorageKind.LUSTRE,
    "ceph": StorageKind.CLUSTER,
    "gpfs": StorageKind.CLUSTER,
    "beegfs": StorageKind.CLUSTER,
    "wekafs": StorageKind.CLUSTER,
    "afs": StorageKind.CLUSTER,
    "9p": StorageKind.HOST_SHARE,
    "virtiofs": StorageKind.HOST_SHARE,
    "vboxsf": StorageKind.HOST_SHARE,
    "tmpfs": StorageKind.TMPFS,
    "ramfs": StorageKind.TMPFS,
    "devtmpfs": StorageKind.TMPFS,
    "overlay": StorageKind.OVERLAY,
    "fuse": StorageKind.FUSE,
    "macfuse": StorageKind.FUSE,
}


def kind_of_filesystem(filesystem: str) -> StorageKind | None:
    """The kind a filesystem's name alone decides; None where the disk below it does."""
    if filesystem.startswith("fuse."):
        return StorageKind.FUSE
    return _BY_FILESYSTEM.get(filesystem)


def slowest_kind(kinds: Iterable[StorageKind]) -> StorageKind:
    """What an array of these disks is to be taken for."""
    return min(kinds, key=_SLOWEST_FIRST.index)
