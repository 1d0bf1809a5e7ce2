"""Bounds by hand."""

import pytest

from penstock.errors import SettingError
from penstock.model.bounds import Bound, Demands, bounds, in_system, utilisation


def test_what_binds_comes_first_and_what_would_bind_next_after_it():
    found = bounds(
        Demands(
            workers=8,
            service_s=0.4,
            cores=2,
            cpu_s=0.2,
            serial_s=0.01,
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


def test_what_is_not_known_bounds_nothing():
    assert bounds(Demands(workers=4, service_s=0.5, size_bytes=1e6)) == (Bound("workers", 8.0),)
    assert bounds(Demands(workers=0)) == ()


@pytest.mark.parametrize("wrong", [{"cores": 0.0, "cpu_s": 1.0}, {"step_s": -1.0}, {"main_s": float("nan")}])
def test_demands_that_are_none_are_refused(wrong):
    with pytest.raises(SettingError, match="make no bound"):
        bounds(Demands(workers=1, **wrong))


def test_utilisation_and_littles_law():
    assert utilisation(rate=10, demand_s=0.2, servers=4) == 0.5
    assert in_system(rate=10, residence_s=0.4) == 4
