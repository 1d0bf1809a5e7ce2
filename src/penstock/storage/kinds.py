"""The kinds of storage that Penstock distinguishes, and which of them a filesystem's name implies."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class StorageKind(StrEnum):
    """The kind of storage under a path, as the system reports it; `penstock.probe.storage` measures it."""

    NVME = "nvme"
    SSD = "ssd"
    HDD = "hdd"
    VIRTUAL_DISK = "virtual disk"
    """A disk provided by a hypervisor; the hardware below it is not visible."""
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
    """A folder of the host in a virtual machine: virtiofs, 9p, vboxsf."""
    TMPFS = "tmpfs"
    RAM = "ram"
    """A block device in memory: zram, brd, pmem."""
    OVERLAY = "overlay"
    """An overlay filesystem whose layers are not visible."""
    UNKNOWN = "unknown"

    @property
    def in_memory(self) -> bool:
        """Whether reads never reach a disk or a network, so that cold and warm reads are the same."""
        return self in (StorageKind.TMPFS, StorageKind.RAM)

    @property
    def remote(self) -> bool:
        """Whether reads cross a network: concurrent reads hide its latency, and the server may have a cache."""
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
    """Return the kind that a filesystem's name implies; None if it depends on the disk below."""
    if filesystem.startswith("fuse."):
        return StorageKind.FUSE
    return _BY_FILESYSTEM.get(filesystem)


def slowest_kind(kinds: Iterable[StorageKind]) -> StorageKind:
    """Return the slowest kind, which determines the speed of an array of disks."""
    return min(kinds, key=_SLOWEST_FIRST.index)
