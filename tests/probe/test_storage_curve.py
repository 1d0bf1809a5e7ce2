import re
from pathlib import Path

import pytest

from penstock.probe.storage_curve import (
    CurvePoint,
    OpenStat,
    StorageBehaviour,
    StorageCurve,
    explain_behaviour,
    measured_behaviour,
)
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import StorageFacts


def curve(*points, sample_bytes=500_000, cold=True):
    return StorageCurve(
        points=tuple(CurvePoint(*point) for point in points),
        sample_bytes=sample_bytes,
        open_stat=OpenStat(4, 9, 100),
        cold=cold,
        method="direct" if cold else "warm",
        probe_bytes=1 << 28,
        seconds=5,
        measured_unix_s=0,
    )


def storage(kind, rotational):
    return StorageFacts(Path("/d"), "/d", "ext4", "/dev/x", "8:0", StorageKind(kind), rotational, (), False)


NVME = curve((1, 1500, 2000), (2, 2500, 3600), (4, 2900, 5700), (8, 3000, 5900), (16, 3000, 6000))
SPINNING = curve((1, 180, 90), (2, 170, 95), (4, 150, 110), (8, 140, 120))
FAR_SERVER = curve((1, 90, 60), (4, 350, 240), (16, 1100, 950), (32, 1100, 1900))


def test_the_fewest_reads_in_flight_within_five_percent_of_the_best_are_needed():
    assert NVME.best_random().in_flight == 16
    assert NVME.in_flight_needed() == 4
    assert FAR_SERVER.in_flight_needed() == 32


def test_random_share_compares_the_best_random_and_sequential_rates():
    assert NVME.random_share() == pytest.approx(1.0)
    assert SPINNING.random_share() == pytest.approx(120 * 0.5 / 180)


def test_lost_time_is_what_parallel_reads_do_not_hide():
    assert SPINNING.lost_ms_per_read() == pytest.approx(1e3 / 120 - 500 / 180)
    assert NVME.lost_ms_per_read() == 0
    assert FAR_SERVER.lost_ms_per_read() < 0.1  # its latency is hidden by many reads in flight


@pytest.mark.parametrize(
    ("kind", "flag", "measured", "expected"),
    [
        ("virtual disk", True, NVME, "The system says spinning disk, the measurement flash: .* is believed"),
        ("ssd", False, SPINNING, "The system says flash, the measurement spinning disk: .* is believed"),
        ("hdd", True, SPINNING, "Acts like a spinning disk, as the system says"),
        ("nvme", False, NVME, "Acts like flash, as the system says"),
        ("nfs", None, FAR_SERVER, "Acts like flash: "),
    ],
)
def test_the_measurement_counts_and_a_disagreement_is_reported(kind, flag, measured, expected):
    assert re.match(expected, explain_behaviour(storage(kind, flag), measured))


def test_warm_reads_leave_the_behaviour_undetermined():
    warm = curve((1, 9000, 20000), cold=False)
    assert measured_behaviour(storage("hdd", True), warm) is StorageBehaviour.UNDETERMINED
    assert explain_behaviour(storage("hdd", True), warm).startswith("Undetermined")
    assert measured_behaviour(storage("tmpfs", None), warm) is StorageBehaviour.FLASH


@pytest.mark.parametrize("bad", [(0, 1, 1), (1, -1, 1), (1, 1, float("nan")), (1, float("inf"), 1)])
def test_a_point_with_a_number_that_is_not_positive_is_refused(bad):
    with pytest.raises(ValueError):
        CurvePoint(*bad)


def test_a_curve_whose_points_do_not_rise_is_refused():
    with pytest.raises(ValueError):
        curve()
    with pytest.raises(ValueError):
        curve((2, 1, 1), (1, 1, 1))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (FAR_SERVER, "Bandwidth-bound from there on: one request at a time brings 90 MB/s, 16 at once 1100"),
        (curve((1, 90, 60), (4, 350, 240), (16, 1100, 950)), "Latency-bound as far as was tried: .* 16 at once 1100"),
        (curve((1, 90, 60), (4, 91, 90)), "Bandwidth-bound from there on: one request at a time brings 90 MB/s\\. "),
        (curve((1, 90, 60)), "Undetermined: 90 MB/s with one request at a time"),
    ],
)
def test_a_store_is_latency_bound_while_more_requests_bring_more(measured, expected):
    assert re.match(expected, explain_behaviour(storage("object store", None), measured))
