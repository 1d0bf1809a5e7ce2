"""Tests of the operational laws, with bounds computed by hand."""

import pytest

from penstock.errors import SettingError
from penstock.model.bounds import Bound, Demands, batches_in_system, bounds, utilisation


def test_bounds_are_sorted_with_the_tightest_first():
    found = bounds(
        Demands(
            workers=8,
            service_s=0.4,
            cores=2,
            cpu_s=0.2,
            lock_s=0.01,
            size_bytes=50e6,
            bandwidth_bytes_s=400e6,
            requests=100,
            requests_s=1000,
            main_s=0.02,
            step_s=0.04,
        )
    )
    assert [(bound.name, pytest.approx(bound.rate)) for bound in found] == [
        ("bandwidth", 8),
        ("cpu", 10),
        ("requests", 10),
        ("workers", 20),
        ("step", 25),
        ("main", 50),
        ("serial", 100),
    ]


def test_an_unknown_capacity_gives_no_bound():
    assert bounds(Demands(workers=4, service_s=0.5, size_bytes=1e6)) == (Bound("workers", 8.0),)
    assert bounds(Demands(workers=0)) == ()


@pytest.mark.parametrize("wrong", [{"cores": 0.0, "cpu_s": 1.0}, {"step_s": -1.0}, {"main_s": float("nan")}])
def test_impossible_demands_are_refused(wrong):
    with pytest.raises(SettingError, match="give no bound"):
        bounds(Demands(workers=1, **wrong))


def test_utilisation_and_littles_law():
    assert utilisation(rate=10, demand_s=0.2, servers=4) == 0.5
    assert batches_in_system(rate=10, residence_s=0.4) == 4
