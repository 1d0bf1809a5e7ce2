from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.mounts import mount_of, parse_mountinfo, unescape

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
