from pathlib import Path

import pytest

from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.report.storage import WritableSpace, claim_rows, curve_rows
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts

ROOM = WritableSpace(writable=True, free_bytes=80_000_000_000, total_bytes=250_000_000_000)


def make_storage(kind="nvme", *, rotational=None, read_only=False):
    chain = ("/d (ext4, /dev/x)", "x")
    return StorageFacts(Path("/d"), "/d", "ext4", "/dev/x", "8:0", StorageKind(kind), rotational, chain, read_only)


def make_curve(*points, cold=True, open_us=4.0):
    opens = OpenStat(open_us, open_us * 2, 100)
    numbers = tuple(CurvePoint(*point) for point in points)
    return StorageCurve(numbers, 500_000, opens, cold, "direct" if cold else "warm", 1 << 28, 5.0, 0.0)


FAST = make_curve((1, 1500, 2000), (4, 3000, 5580), (32, 2900, 5500))
SEEKING = make_curve((1, 180, 90), (2, 170, 95), (4, 150, 110))


def rows(storage, curve, age_s=0.0):
    return {row.name: row for row in curve_rows(storage, curve, age_s)}


def test_a_fast_disk_is_fine_all_over():
    found = rows(make_storage(), FAST)
    assert all(row.ok for row in found.values())
    assert found["random"].meaning == (
        "Random reads of one sample reach 93% of sequential speed: shuffling costs little here."
    )
    assert found["sequential"].meaning.endswith("at most 6,000 samples/s of 500 kB.")
    assert found["in flight to use"].value == "4"


def test_a_seeking_disk_is_marked_with_what_to_do():
    found = rows(make_storage("hdd", rotational=True), SEEKING)
    assert not found["random"].ok
    assert "reach 31% of sequential speed: read whole blocks" in found["random"].meaning
    assert found["acts like"].value == "spinning disk"
    assert found["in flight to use"].meaning == "More than 4 could not be tried with the time and the files at hand."


def test_small_reads_on_flash_are_dear_but_nothing_is_wrong():
    row = rows(make_storage(), make_curve((1, 3000, 1500), (2, 3000, 2500)))["random"]
    assert row.ok
    assert "reads this small cost more than their bytes" in row.meaning


def test_random_faster_than_sequential_is_not_a_share_above_one():
    row = rows(make_storage(), make_curve((1, 1000, 2500)))["random"]
    assert "as fast as sequential" in row.meaning


def test_the_last_depth_still_gaining_is_said():
    row = rows(make_storage("nfs"), make_curve((1, 90, 60), (32, 1100, 1900)))["in flight to use"]
    assert (row.value, row.meaning) == ("32", "The most that was tried: it still gained from more reads at once.")


def test_warm_rates_are_marked_unless_it_is_memory():
    warm = make_curve((1, 9000, 18000), cold=False)
    assert not rows(make_storage("hdd", rotational=True), warm)["cold"].ok
    assert rows(make_storage("tmpfs"), warm)["cold"].ok


def test_caches_beyond_this_machine_are_admitted():
    assert "may still have helped" in rows(make_storage("nfs"), FAST)["cold"].meaning
    assert "may still have helped" not in rows(make_storage("nvme"), FAST)["cold"].meaning


def test_slow_opens_are_marked():
    row = rows(make_storage("nfs"), make_curve((1, 1000, 2000), open_us=20_000))["open + stat"]
    assert not row.ok
    assert row.meaning.startswith("One thread opens at most 50 files/s: use shards")


def test_an_earlier_measurement_tells_its_age():
    assert rows(make_storage(), FAST, age_s=7200)["measured"].value == "2 h ago"
    assert rows(make_storage(), FAST)["measured"].value == "now"


@pytest.mark.parametrize("kind", list(StorageKind))
def test_every_kind_has_its_meaning(kind):
    row = next(claim_rows(make_storage(kind), ROOM))
    assert row.value == f"{kind} (ext4)"
    assert row.meaning.endswith(".")


def test_a_read_only_place_is_no_fault_and_its_free_space_no_matter():
    found = [(row.name, row.value, row.ok) for row in claim_rows(make_storage(read_only=True), ROOM)]
    assert found[2:] == [("writable", "no", True)]


def test_a_nearly_full_place_is_marked():
    full = WritableSpace(writable=True, free_bytes=1_000_000_000, total_bytes=250_000_000_000)
    assert [row.name for row in claim_rows(make_storage(), full) if not row.ok] == ["free space"]
