import io
from pathlib import Path

import pytest
from rich.console import Console

from penstock.plan.doctor.check import Check, CheckStatus
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.report.doctor import SIGNS, StorageRow, WritableSpace, as_checks, check_table, claim_rows, curve_rows
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts


def shown(title, checks):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(check_table(title, checks))
    return console.export_text()


def test_every_status_has_a_sign_of_its_own():
    assert set(SIGNS) == set(CheckStatus)
    assert len(set(SIGNS.values())) == len(CheckStatus)


def test_rows_begin_with_their_sign_and_fit_into_80_columns():
    text = shown("this machine", [Check(f"row {mark}", "found", "It means much. " * 9, mark) for mark in CheckStatus])
    assert [line.split()[0] for line in text.splitlines() if "row " in line] == ["✓", "!", "✗", "–"]
    assert max(len(line) for line in text.splitlines()) <= 80


def test_markup_and_escapes_in_names_stay_text():
    text = shown("[bold]\x1b[31m", [Check("[red]x", "\x1b[2J", "Means.")])
    assert "[bold]\\x1b[31m" in text
    assert "[red]x" in text
    assert "\x1b" not in text


def test_rows_about_a_storage_become_checks():
    found = list(as_checks([StorageRow("kind", "nvme", "Fast."), StorageRow("random", "slow", "Seeks.", ok=False)]))
    assert [check.mark for check in found] == [CheckStatus.GOOD, CheckStatus.ATTENTION]
    assert (found[0].name, found[0].value, found[0].meaning) == ("kind", "nvme", "Fast.")


# -- rows about a storage ---------------------------------------------------------------------------------------------


SPACE = WritableSpace(writable=True, free_bytes=80_000_000_000, total_bytes=250_000_000_000)


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


def test_all_rows_of_a_fast_disk_are_good():
    found = rows(make_storage(), FAST)
    assert all(row.ok for row in found.values())
    assert found["random"].meaning == (
        "Random reads of one sample reach 93% of sequential speed: shuffling costs little here."
    )
    assert found["sequential"].meaning.endswith("at most 6,000 samples/s of 500 kB.")
    assert found["in flight to use"].value == "4"


def test_a_seeking_disk_is_marked_with_advice():
    found = rows(make_storage("hdd", rotational=True), SEEKING)
    assert not found["random"].ok
    assert "reach 31% of sequential speed: read whole blocks" in found["random"].meaning
    assert found["acts like"].value == "spinning disk"
    assert (
        found["in flight to use"].meaning == "More than 4 could not be measured with the time and the files available."
    )


def test_small_reads_on_flash_are_explained_but_not_marked():
    row = rows(make_storage(), make_curve((1, 3000, 1500), (2, 3000, 2500)))["random"]
    assert row.ok
    assert "reads this small cost more than their bytes" in row.meaning


def test_random_reads_faster_than_sequential_ones_are_explained():
    row = rows(make_storage(), make_curve((1, 1000, 2500)))["random"]
    assert "as fast as sequential" in row.meaning


def test_a_gain_at_the_last_depth_is_reported():
    row = rows(make_storage("nfs"), make_curve((1, 90, 60), (32, 1100, 1900)))["in flight to use"]
    assert (row.value, row.meaning) == ("32", "The most that was measured: it still gained from more reads at once.")


def test_warm_rates_are_marked_unless_the_storage_is_memory():
    warm = make_curve((1, 9000, 18000), cold=False)
    assert not rows(make_storage("hdd", rotational=True), warm)["cold"].ok
    assert rows(make_storage("tmpfs"), warm)["cold"].ok


def test_caches_outside_this_machine_are_mentioned():
    assert "may still have helped" in rows(make_storage("nfs"), FAST)["cold"].meaning
    assert "may still have helped" not in rows(make_storage("nvme"), FAST)["cold"].meaning


def test_slow_opens_are_marked():
    row = rows(make_storage("nfs"), make_curve((1, 1000, 2000), open_us=20_000))["open + stat"]
    assert not row.ok
    assert row.meaning.startswith("One thread opens at most 50 files/s: use shards")


def test_an_earlier_measurement_shows_its_age():
    assert rows(make_storage(), FAST, age_s=7200)["measured"].value == "2 h ago"
    assert rows(make_storage(), FAST)["measured"].value == "now"


@pytest.mark.parametrize("kind", list(StorageKind))
def test_every_kind_of_storage_has_a_meaning(kind):
    row = next(claim_rows(make_storage(kind), SPACE))
    assert row.value == f"{kind} (ext4)"
    assert row.meaning.endswith(".")


def test_a_read_only_folder_is_good_and_its_free_space_is_left_out():
    found = [(row.name, row.value, row.ok) for row in claim_rows(make_storage(read_only=True), SPACE)]
    assert found[2:] == [("writable", "no", True)]


def test_a_nearly_full_filesystem_is_marked():
    full = WritableSpace(writable=True, free_bytes=1_000_000_000, total_bytes=250_000_000_000)
    assert [row.name for row in claim_rows(make_storage(), full) if not row.ok] == ["free space"]
