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


def test_escapes_are_undone():
    assert unescape(r"a\040b\011c\134d") == "a b\tc\\d"
    assert mount_point("/mnt/my shards,old/0.tar") == ("/mnt/my shards,old", "/dev/sda1")


def test_a_name_that_only_begins_alike_is_not_below_a_mount():
    assert mount_point("/database/0.tar") == ("/", "/dev/nvme0n1p2")
    assert mount_point("/data") == ("/data", "/dev/sdb1")


def test_a_bind_mount_keeps_its_root_and_its_own_read_only_flag():
    mount = mount_of("/data/0.tar", parse_mountinfo(LAPTOP))
    assert mount is not None
    assert (mount.root, mount.read_only) == ("/exports/data", True)


def test_the_last_of_stacked_mounts_wins():
    text = "30 1 8:1 / / rw - ext4 /dev/a rw\n31 30 8:2 / /d rw - ext4 /dev/b rw\n32 31 8:3 / /d rw - ext4 /dev/c rw"
    assert mount_point("/d/x", text) == ("/d", "/dev/c")


def test_a_mount_hidden_under_a_later_one_is_not_the_answer():
    text = "30 1 8:1 / / rw - ext4 /dev/a rw\n31 30 8:2 / /d/e rw - ext4 /dev/b rw\n32 30 8:3 / /d rw - ext4 /dev/c rw"
    assert mount_point("/d/e/x", text) == ("/d", "/dev/c")


def test_without_a_visible_root_the_longest_mount_counts():
    text = "31 7 8:2 / /d rw - ext4 /dev/b rw\n32 7 8:3 / /d/e rw - ext4 /dev/c rw"
    assert mount_point("/d/e/x", text) == ("/d/e", "/dev/c")
    assert mount_point("/other", text) is None


def test_mounts_that_claim_each_other_as_parents_end():
    text = "1 1 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /d rw - ext4 /dev/b rw\n1 2 8:1 / /d rw - ext4 /dev/a rw"
    assert mount_point("/d/x", text) == ("/d", "/dev/b")


def test_lines_of_another_shape_are_left_out():
    assert parse_mountinfo("\nnonsense\n1 2 3 - x\nx y 8:1 / / rw - ext4 /dev/a rw\n") == ()


@given(st.text(), st.text(alphabet="/ab"))
def test_any_text_parses_and_any_path_gets_an_answer(text, path):
    mounts = parse_mountinfo(text + "\n30 1 8:1 / / rw - ext4 /dev/a rw")
    assert mount_of("/" + path.strip("/"), mounts) is not None


ROOT = "30 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"


@pytest.fixture
def see(sys_tree):
    """Identify a path over given mounts and the test's own /sys."""

    def see(path, *lines):
        return storage_from_mountinfo(Path(path), ROOT + "\n".join(lines), sys_tree.root)

    return see


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
def test_the_filesystem_decides_where_there_is_no_disk(see, filesystem, source, kind):
    storage = see("/d/0.tar", f"50 30 0:53 / /d rw - {filesystem} {source} rw,vers=4.2")
    assert (storage.kind, storage.source, storage.mount_point) == (kind, source, "/d")
    assert storage.rotational is None


def test_a_partition_leads_to_its_disk(see, sys_tree):
    sys_tree.disk("nvme0n1", "259:0", 0, device__model="Samsung SSD 990 PRO", device__transport="pcie")
    sys_tree.partition("nvme0n1", "nvme0n1p2", "259:2")
    storage = see("/home/me")
    assert (storage.kind, storage.rotational) == (StorageKind.NVME, False)
    assert storage.chain == (
        "/ (ext4, /dev/nvme0n1p2)",
        "partition nvme0n1p2",
        "nvme0n1 (Samsung SSD 990 PRO, over pcie)",
    )


@pytest.mark.parametrize(("flag", "kind"), [(1, "hdd"), (0, "ssd")])
def test_a_sata_disk_is_what_its_flag_says(see, sys_tree, flag, kind):
    sys_tree.disk("sda", "8:0", flag, device__vendor="ATA", device__model="WDC WD80")
    storage = see("/d", "50 30 8:0 / /d rw - xfs /dev/sda rw")
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
def test_disks_that_are_not_what_their_flag_says_are_named(see, sys_tree, name, files, kind):
    sys_tree.disk(name, "254:0", 1, **files)
    assert see("/d", f"50 30 254:0 / /d rw - ext4 /dev/{name} rw").kind == kind


def test_encryption_on_lvm_is_seen_through(see, sys_tree):
    sys_tree.disk("nvme0n1", "259:0", 0)
    sys_tree.partition("nvme0n1", "nvme0n1p2", "259:2")
    sys_tree.disk("dm-0", "253:0", 0, slaves=["nvme0n1p2"], dm__name="luks", dm__uuid="CRYPT-LUKS2-12ab-luks")
    sys_tree.disk("dm-1", "253:1", 0, slaves=["dm-0"], dm__name="vg-data", dm__uuid="LVM-abc")
    storage = see("/d", "50 30 253:1 / /d rw - ext4 /dev/mapper/vg-data rw")
    assert storage.kind is StorageKind.NVME
    assert storage.chain[1:] == (
        "dm-1 (LVM vg-data)",
        "dm-0 (dm-crypt luks)",
        "partition nvme0n1p2",
        "nvme0n1",
    )


def test_an_array_is_as_slow_as_its_slowest_disk(see, sys_tree):
    sys_tree.disk("sda", "8:0", 0)
    sys_tree.disk("sdb", "8:16", 1)
    sys_tree.disk("md0", "9:0", 0, slaves=["sda", "sdb"], md__level="raid1")
    storage = see("/d", "50 30 9:0 / /d rw - ext4 /dev/md0 rw")
    assert (storage.kind, storage.rotational) == (StorageKind.HDD, True)
    assert storage.chain[1:] == ("md0 (raid1)", "sda", "sdb")


def test_devices_that_are_each_others_slaves_end(see, sys_tree):
    sys_tree.disk("dm-0", "253:0", 0)
    sys_tree.disk("dm-1", "253:1", 0, slaves=["dm-0"])
    folder = sys_tree.root / "class" / "block" / "dm-0" / "slaves"
    folder.mkdir()
    (folder / "dm-1").symlink_to(sys_tree.root / "class" / "block" / "dm-1")
    assert see("/d", "50 30 253:1 / /d rw - ext4 /dev/dm-1 rw").kind is StorageKind.UNKNOWN


@pytest.mark.parametrize("source", ["/dev/sda1", "/dev/mapper/pool"])
def test_an_anonymous_number_is_resolved_through_the_source(see, sys_tree, source):
    sys_tree.disk("sda", "8:0", 1)
    sys_tree.partition("sda", "sda1", "8:1")
    sys_tree.disk("dm-3", "253:3", 1, slaves=["sda1"], dm__name="pool", dm__uuid="CRYPT-x")
    storage = see("/d", f"50 30 0:44 /@home /d rw - btrfs {source} rw,subvol=/@home")
    assert (storage.kind, storage.filesystem) == (StorageKind.HDD, "btrfs")


def test_zfs_hides_its_disks_and_that_is_said(see):
    storage = see("/d", "50 30 0:44 / /d rw - zfs tank/data rw")
    assert storage.kind is StorageKind.UNKNOWN
    assert "not visible" in storage.chain[-1]


def test_a_loop_device_leads_to_its_file(see, sys_tree):
    sys_tree.disk("loop0", "7:0", 0, loop__backing_file="/images/data.img")
    sys_tree.disk("sda", "8:0", 1)
    storage = see(
        "/d",
        "50 30 7:0 / /d ro - squashfs /dev/loop0 ro",
        "51 30 8:0 / /images rw - ext4 /dev/sda rw",
    )
    assert (storage.kind, storage.read_only) == (StorageKind.HDD, True)
    assert storage.chain[1] == "loop0 on the file /images/data.img"


def test_an_overlay_is_seen_through_to_the_layer_that_holds_the_file(see, sys_tree, tmp_path):
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
    assert see("/m/0.tar", *lines).kind is StorageKind.SSD
    assert see("/m", *lines).kind is StorageKind.HDD
    assert see("/m", *lines).filesystem == "overlay"


def test_the_newer_spelling_of_lower_layers_is_read(see, sys_tree, tmp_path):
    sys_tree.disk("sda", "8:0", 1)
    storage = see(
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


def test_inside_a_container_the_layers_are_invisible_and_that_is_said(sys_tree):
    storage = storage_from_mountinfo(Path("/workspace"), DOCKER_ROOT, sys_tree.root)
    assert storage.kind is StorageKind.OVERLAY
    assert "not visible" in storage.chain[-1]


def test_docker_gives_its_disk_away_by_the_files_it_binds(sys_tree):
    sys_tree.disk("nvme0n1", "259:0", 0)
    hosts = f"710 700 259:0 /var/lib/docker/containers/{DOCKER_ID}/hosts /etc/hosts rw - ext4 /dev/nvme0n1 rw\n"
    storage = storage_from_mountinfo(Path("/workspace"), DOCKER_ROOT + hosts, sys_tree.root)
    assert storage.kind is StorageKind.NVME
    assert "inferred from /etc/hosts" in storage.chain[1]


def test_a_volume_inside_a_container_is_judged_on_its_own(sys_tree):
    sys_tree.disk("sda", "8:0", 1)
    volume = "720 700 8:0 /srv/sa1b /data ro - xfs /dev/sda rw\n"
    storage = storage_from_mountinfo(Path("/data/0.tar"), DOCKER_ROOT + volume, sys_tree.root)
    assert (storage.kind, storage.read_only) == (StorageKind.HDD, True)


def test_no_mount_at_all_is_unknown(sys_tree):
    assert storage_from_mountinfo(Path("/d"), "", sys_tree.root).kind is StorageKind.UNKNOWN


PARTITIONS = [
    SimpleNamespace(device="/dev/disk3s1", mountpoint="/", fstype="apfs", opts="ro,local"),
    SimpleNamespace(device="//me@nas/data", mountpoint="/Volumes/data", fstype="smbfs", opts="rw"),
]


def test_without_mountinfo_the_partitions_speak():
    storage = storage_from_partitions(Path("/Volumes/data/0.tar"), PARTITIONS)
    assert (storage.kind, storage.source, storage.read_only) == (StorageKind.SMB, "//me@nas/data", False)
    root = storage_from_partitions(Path("/Users/me"), PARTITIONS)
    assert (root.kind, root.filesystem, root.read_only) == (StorageKind.UNKNOWN, "apfs", True)


def test_a_mapped_drive_is_remote():
    drive = SimpleNamespace(device="Z:\\", mountpoint="Z:\\", fstype="NTFS", opts="rw,remote")
    assert storage_from_partitions(Path("Z:\\sa1b\\0.tar"), [drive]).kind is StorageKind.SMB
    assert storage_from_partitions(Path("C:\\x"), [drive]).kind is StorageKind.UNKNOWN


def test_this_machine_s_own_paths_are_identified(tmp_path):
    storage = identify_storage(tmp_path)
    assert storage.path == tmp_path.resolve()
    assert Path(storage.mount_point).is_mount()


def test_links_are_followed_and_missing_paths_take_their_nearest_parent(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert identify_storage(tmp_path / "link" / "not" / "yet").path == (tmp_path / "real").resolve()


def test_a_path_that_cannot_be_resolved_is_our_own_error():
    with pytest.raises(StorageError, match="cannot resolve"):
        identify_storage("a\0b")


@pytest.mark.skipif(sys.platform != "linux", reason="mounting is Linux here")
def test_a_real_tmpfs_is_seen_as_one(mount_tmpfs):
    folder = mount_tmpfs("small tmpfs", "size=1m")
    storage = identify_storage(folder / "x")
    assert (storage.kind, storage.mount_point) == (StorageKind.TMPFS, os.fspath(folder))
