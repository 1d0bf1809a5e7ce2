"""The mount, the filesystem and the disks of a path are found in mountinfo and /sys."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StorageError
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import (
    identify_storage,
    mount_of,
    parse_mountinfo,
    storage_from_mountinfo,
    storage_from_partitions,
    unescape,
)

LAPTOP = r"""
24 30 0:22 / /proc rw,nosuid - proc proc rw
30 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 30 8:1 / /mnt/my\040shards\054old rw,noatime shared:5 - xfs /dev/sda1 rw,attr2
41 30 8:17 /exports/data /data ro,relatime shared:6 - ext4 /dev/sdb1 rw
"""


def mount_point(path, text=LAPTOP):
    mount = mount_of(path, parse_mountinfo(text))
    return mount and (mount.mount_point, mount.source)


def test_octal_escapes_are_decoded():
    assert unescape(r"a\040b\011c\134d") == "a b\tc\\d"
    assert mount_point("/mnt/my shards,old/0.tar") == ("/mnt/my shards,old", "/dev/sda1")


def test_a_path_with_the_same_prefix_is_not_below_the_mount():
    assert mount_point("/database/0.tar") == ("/", "/dev/nvme0n1p2")
    assert mount_point("/data") == ("/data", "/dev/sdb1")


def test_a_bind_mount_has_its_own_root_and_read_only_flag():
    mount = mount_of("/data/0.tar", parse_mountinfo(LAPTOP))
    assert mount is not None
    assert (mount.root, mount.read_only) == ("/exports/data", True)


def test_the_last_of_stacked_mounts_is_returned():
    text = "30 1 8:1 / / rw - ext4 /dev/a rw\n31 30 8:2 / /d rw - ext4 /dev/b rw\n32 31 8:3 / /d rw - ext4 /dev/c rw"
    assert mount_point("/d/x", text) == ("/d", "/dev/c")


def test_a_mount_hidden_under_a_later_one_is_not_returned():
    text = "30 1 8:1 / / rw - ext4 /dev/a rw\n31 30 8:2 / /d/e rw - ext4 /dev/b rw\n32 30 8:3 / /d rw - ext4 /dev/c rw"
    assert mount_point("/d/e/x", text) == ("/d", "/dev/c")


def test_without_a_visible_root_the_longest_mount_point_is_returned():
    text = "31 7 8:2 / /d rw - ext4 /dev/b rw\n32 7 8:3 / /d/e rw - ext4 /dev/c rw"
    assert mount_point("/d/e/x", text) == ("/d/e", "/dev/c")
    assert mount_point("/other", text) is None


def test_mounts_that_name_each_other_as_parents_do_not_loop():
    text = "1 1 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /d rw - ext4 /dev/b rw\n1 2 8:1 / /d rw - ext4 /dev/a rw"
    assert mount_point("/d/x", text) == ("/d", "/dev/b")


def test_malformed_lines_are_skipped():
    assert parse_mountinfo("\nnonsense\n1 2 3 - x\nx y 8:1 / / rw - ext4 /dev/a rw\n") == ()


@given(st.text(), st.text(alphabet="/ab"))
def test_any_text_is_parsed_and_any_path_has_a_mount(text, path):
    mounts = parse_mountinfo(text + "\n30 1 8:1 / / rw - ext4 /dev/a rw")
    assert mount_of("/" + path.strip("/"), mounts) is not None


ROOT = "30 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"


@pytest.fixture
def identify_at(sys_tree):
    """A function that identifies a path from given mounts and the test's own /sys."""

    def identify_at(path, *lines):
        return storage_from_mountinfo(Path(path), ROOT + "\n".join(lines), sys_tree.root)

    return identify_at


@pytest.mark.parametrize(
    ("filesystem", "source", "kind"),
    [
        ("nfs4", "nas:/export/sa1b", "nfs"),
        ("nfs", "10.0.0.7:/vol", "nfs"),
        ("cifs", "//nas/data", "smb"),
        ("smb3", "//nas/data", "smb"),
        ("lustre", "10.1.1.1@o2ib:/scratch", "lustre"),
        ("ceph", "10.0.0.1:6789:/", "cluster"),
        ("gpfs", "gpfs0", "cluster"),
        ("fuse.sshfs", "me@box:/data", "fuse"),
        ("fuse.s3fs", "s3fs", "fuse"),
        ("virtiofs", "share0", "host share"),
        ("9p", "drvfs", "host share"),
        ("tmpfs", "tmpfs", "tmpfs"),
    ],
)
def test_a_filesystem_without_a_disk_determines_the_kind(identify_at, filesystem, source, kind):
    storage = identify_at("/d/0.tar", f"50 30 0:53 / /d rw - {filesystem} {source} rw,vers=4.2")
    assert (storage.kind, storage.source, storage.mount_point) == (kind, source, "/d")
    assert storage.rotational is None


def test_a_partition_is_resolved_to_its_disk(identify_at, sys_tree):
    sys_tree.disk("nvme0n1", "259:0", 0, device__model="Samsung SSD 990 PRO", device__transport="pcie")
    sys_tree.partition("nvme0n1", "nvme0n1p2", "259:2")
    storage = identify_at("/home/me")
    assert (storage.kind, storage.rotational) == (StorageKind.NVME, False)
    assert storage.chain == (
        "/ (ext4, /dev/nvme0n1p2)",
        "partition nvme0n1p2",
        "nvme0n1 (Samsung SSD 990 PRO, over pcie)",
    )


@pytest.mark.parametrize(("flag", "kind"), [(1, "hdd"), (0, "ssd")])
def test_the_rotational_flag_determines_the_kind_of_a_sata_disk(identify_at, sys_tree, flag, kind):
    sys_tree.disk("sda", "8:0", flag, device__vendor="ATA", device__model="WDC WD80")
    storage = identify_at("/d", "50 30 8:0 / /d rw - xfs /dev/sda rw")
    assert (storage.kind, storage.rotational) == (kind, bool(flag))


@pytest.mark.parametrize(
    ("name", "files", "kind"),
    [
        ("vda", {"device__vendor": "0x1af4"}, "virtual disk"),
        ("xvda", {}, "virtual disk"),
        ("sda", {"device__vendor": "QEMU", "device__model": "QEMU HARDDISK"}, "virtual disk"),
        ("nvme1n1", {"device__model": "Amazon Elastic Block Store"}, "virtual disk"),
        ("nvme1n1", {"device__transport": "tcp"}, "network disk"),
        ("rbd0", {}, "network disk"),
        ("zram0", {}, "ram"),
    ],
)
def test_virtual_network_and_memory_disks_are_recognised_despite_their_flag(identify_at, sys_tree, name, files, kind):
    sys_tree.disk(name, "254:0", 1, **files)
    assert identify_at("/d", f"50 30 254:0 / /d rw - ext4 /dev/{name} rw").kind == kind


def test_encryption_and_lvm_are_resolved_to_the_disk_below(identify_at, sys_tree):
    sys_tree.disk("nvme0n1", "259:0", 0)
    sys_tree.partition("nvme0n1", "nvme0n1p2", "259:2")
    sys_tree.disk("dm-0", "253:0", 0, slaves=["nvme0n1p2"], dm__name="luks", dm__uuid="CRYPT-LUKS2-12ab-luks")
    sys_tree.disk("dm-1", "253:1", 0, slaves=["dm-0"], dm__name="vg-data", dm__uuid="LVM-abc")
    storage = identify_at("/d", "50 30 253:1 / /d rw - ext4 /dev/mapper/vg-data rw")
    assert storage.kind is StorageKind.NVME
    assert storage.chain[1:] == (
        "dm-1 (LVM vg-data)",
        "dm-0 (dm-crypt luks)",
        "partition nvme0n1p2",
        "nvme0n1",
    )


def test_an_array_is_as_slow_as_its_slowest_disk(identify_at, sys_tree):
    sys_tree.disk("sda", "8:0", 0)
    sys_tree.disk("sdb", "8:16", 1)
    sys_tree.disk("md0", "9:0", 0, slaves=["sda", "sdb"], md__level="raid1")
    storage = identify_at("/d", "50 30 9:0 / /d rw - ext4 /dev/md0 rw")
    assert (storage.kind, storage.rotational) == (StorageKind.HDD, True)
    assert storage.chain[1:] == ("md0 (raid1)", "sda", "sdb")


def test_devices_that_are_each_others_slaves_do_not_loop(identify_at, sys_tree):
    sys_tree.disk("dm-0", "253:0", 0)
    sys_tree.disk("dm-1", "253:1", 0, slaves=["dm-0"])
    folder = sys_tree.root / "class" / "block" / "dm-0" / "slaves"
    folder.mkdir()
    (folder / "dm-1").symlink_to(sys_tree.root / "class" / "block" / "dm-1")
    assert identify_at("/d", "50 30 253:1 / /d rw - ext4 /dev/dm-1 rw").kind is StorageKind.UNKNOWN


@pytest.mark.parametrize("source", ["/dev/sda1", "/dev/mapper/pool"])
def test_an_anonymous_device_number_is_resolved_through_the_source(identify_at, sys_tree, source):
    sys_tree.disk("sda", "8:0", 1)
    sys_tree.partition("sda", "sda1", "8:1")
    sys_tree.disk("dm-3", "253:3", 1, slaves=["sda1"], dm__name="pool", dm__uuid="CRYPT-x")
    storage = identify_at("/d", f"50 30 0:44 /@home /d rw - btrfs {source} rw,subvol=/@home")
    assert (storage.kind, storage.filesystem) == (StorageKind.HDD, "btrfs")


def test_zfs_is_unknown_with_disks_that_are_not_visible(identify_at):
    storage = identify_at("/d", "50 30 0:44 / /d rw - zfs tank/data rw")
    assert storage.kind is StorageKind.UNKNOWN
    assert "not visible" in storage.chain[-1]


def test_a_loop_device_is_resolved_to_the_disk_of_its_file(identify_at, sys_tree):
    sys_tree.disk("loop0", "7:0", 0, loop__backing_file="/images/data.img")
    sys_tree.disk("sda", "8:0", 1)
    storage = identify_at(
        "/d",
        "50 30 7:0 / /d ro - squashfs /dev/loop0 ro",
        "51 30 8:0 / /images rw - ext4 /dev/sda rw",
    )
    assert (storage.kind, storage.read_only) == (StorageKind.HDD, True)
    assert storage.chain[1] == "loop0 on the file /images/data.img"


def test_an_overlay_is_resolved_to_the_layer_that_holds_the_file(identify_at, sys_tree, tmp_path):
    sys_tree.disk("sda", "8:0", 1)
    sys_tree.disk("sdb", "8:16", 0)
    upper, lower, work = (tmp_path / name for name in ("up:per", "lower", "work"))
    for folder in (upper, lower, work):
        folder.mkdir()
    (lower / "0.tar").write_bytes(b"")
    lines = (
        f"50 30 0:60 / /m rw - overlay overlay rw,lowerdir=/gone:{lower},upperdir={upper},workdir={work}",
        f"51 30 8:0 / {upper} rw - ext4 /dev/sda rw",
        f"52 30 8:16 / {lower} rw - ext4 /dev/sdb rw",
    )
    assert identify_at("/m/0.tar", *lines).kind is StorageKind.SSD
    assert identify_at("/m", *lines).kind is StorageKind.HDD
    assert identify_at("/m", *lines).filesystem == "overlay"


def test_the_newer_mount_option_for_lower_layers_is_read(identify_at, sys_tree, tmp_path):
    sys_tree.disk("sda", "8:0", 1)
    storage = identify_at(
        "/m",
        f"50 30 0:60 / /m ro - overlay none ro,lowerdir+=/gone,lowerdir+={tmp_path}",
        f"51 30 8:0 / {tmp_path} rw - ext4 /dev/sda rw",
    )
    assert storage.kind is StorageKind.HDD


DOCKER_ID = "4f1c" * 16
DOCKER_ROOT = (
    "700 600 0:80 / / rw,relatime master:190 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/AB:"
    "/var/lib/docker/overlay2/l/CD,upperdir=/var/lib/docker/overlay2/77aa/diff,workdir=/var/lib/docker/overlay2/77aa/work\n"
)


def test_inside_a_container_the_layers_are_reported_as_not_visible(sys_tree):
    storage = storage_from_mountinfo(Path("/workspace"), DOCKER_ROOT, sys_tree.root)
    assert storage.kind is StorageKind.OVERLAY
    assert "not visible" in storage.chain[-1]


def test_docker_s_disk_is_inferred_from_the_files_it_binds(sys_tree):
    sys_tree.disk("nvme0n1", "259:0", 0)
    hosts = f"710 700 259:0 /var/lib/docker/containers/{DOCKER_ID}/hosts /etc/hosts rw - ext4 /dev/nvme0n1 rw\n"
    storage = storage_from_mountinfo(Path("/workspace"), DOCKER_ROOT + hosts, sys_tree.root)
    assert storage.kind is StorageKind.NVME
    assert "inferred from /etc/hosts" in storage.chain[1]


def test_a_volume_inside_a_container_is_identified_separately(sys_tree):
    sys_tree.disk("sda", "8:0", 1)
    volume = "720 700 8:0 /srv/sa1b /data ro - xfs /dev/sda rw\n"
    storage = storage_from_mountinfo(Path("/data/0.tar"), DOCKER_ROOT + volume, sys_tree.root)
    assert (storage.kind, storage.read_only) == (StorageKind.HDD, True)


def test_a_path_without_a_mount_is_unknown(sys_tree):
    assert storage_from_mountinfo(Path("/d"), "", sys_tree.root).kind is StorageKind.UNKNOWN


PARTITIONS = [
    SimpleNamespace(device="/dev/disk3s1", mountpoint="/", fstype="apfs", opts="ro,local"),
    SimpleNamespace(device="//me@nas/data", mountpoint="/Volumes/data", fstype="smbfs", opts="rw"),
]


def test_without_mountinfo_partitions_are_used():
    storage = storage_from_partitions(Path("/Volumes/data/0.tar"), PARTITIONS)
    assert (storage.kind, storage.source, storage.read_only) == (StorageKind.SMB, "//me@nas/data", False)
    root = storage_from_partitions(Path("/Users/me"), PARTITIONS)
    assert (root.kind, root.filesystem, root.read_only) == (StorageKind.UNKNOWN, "apfs", True)


def test_a_mapped_network_drive_is_remote():
    drive = SimpleNamespace(device="Z:\\", mountpoint="Z:\\", fstype="NTFS", opts="rw,remote")
    assert storage_from_partitions(Path("Z:\\sa1b\\0.tar"), [drive]).kind is StorageKind.SMB
    assert storage_from_partitions(Path("C:\\x"), [drive]).kind is StorageKind.UNKNOWN


def test_a_path_of_this_machine_is_identified(tmp_path):
    storage = identify_storage(tmp_path)
    assert storage.path == tmp_path.resolve()
    assert Path(storage.mount_point).is_mount()


def test_links_are_followed_and_missing_paths_use_their_nearest_parent(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert identify_storage(tmp_path / "link" / "not" / "yet").path == (tmp_path / "real").resolve()


def test_a_path_that_cannot_be_resolved_is_a_storage_error():
    with pytest.raises(StorageError, match="cannot resolve"):
        identify_storage("a\0b")


@pytest.mark.skipif(sys.platform != "linux", reason="tests mount filesystems on Linux only")
def test_a_real_tmpfs_is_recognised(mount_tmpfs):
    folder = mount_tmpfs("small tmpfs", "size=1m")
    storage = identify_storage(folder / "x")
    assert (storage.kind, storage.mount_point) == (StorageKind.TMPFS, os.fspath(folder))
