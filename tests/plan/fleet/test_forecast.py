"""Plans for many ranks, checked against calculations by hand."""

import numpy as np
import pytest
from tests.support.fleet_needs import BATCH, BATCH_BYTES, STEP_S, need, site

from penstock.errors import SettingError
from penstock.options import BLOCK_BYTES, LANES, default_lanes
from penstock.plan.fleet import forecast as forecast_module
from penstock.plan.fleet.cluster import Cluster, cache_hit_share, cluster_bounds, fleet_demand
from penstock.plan.fleet.forecast import MIN_BLOCKS_PER_LANE, StorePrice, forecast_epoch, plan_fleet, plan_lanes
from penstock.plan.fleet.rank_need import expected_maximum, in_blocks, with_half_side

RANKS = 32


def rate_by_name(bounds):
    return {bound.name: bound.rate for bound in bounds}


# -- demand --------------------------------------------------------------------------------------------------------


def test_the_demand_is_that_of_all_gpus_that_never_wait():
    demand = fleet_demand(need(), site())
    assert demand.samples_s == pytest.approx(RANKS * BATCH / STEP_S)
    assert demand.store_bytes_s == pytest.approx(RANKS * BATCH_BYTES / STEP_S)
    assert demand.store_requests_s == pytest.approx(RANKS * 100 / STEP_S)
    assert demand.node_bytes_s == pytest.approx(8 * BATCH_BYTES / STEP_S)
    assert demand.node_cores == pytest.approx(8 * 0.2 / STEP_S)
    assert demand.in_flight == pytest.approx(2.5)


def test_bytes_in_caches_are_not_demanded_of_the_store():
    assert fleet_demand(need(), site(), 0.75).store_bytes_s == pytest.approx(RANKS * BATCH_BYTES / STEP_S / 4)


def test_the_demand_of_uncounted_amounts_is_unknown():
    demand = fleet_demand(need(batch_bytes=None, batch_requests=None), site())
    assert (demand.store_bytes_s, demand.store_requests_s, demand.node_bytes_s) == (None, None, None)


# -- bounds --------------------------------------------------------------------------------------------------------


def test_each_bound_is_capacity_over_demand():
    found = rate_by_name(
        cluster_bounds(
            need(), site(network_bytes_s=4e9, store_bytes_s=8e9, store_requests_s=16e3, cache_bytes_s=1e9), 0.5
        )
    )
    assert found["step"] == pytest.approx(1 / STEP_S)
    assert found["cores"] == pytest.approx(64 / (8 * 0.2))
    assert found["network"] == pytest.approx(4e9 / (8 * BATCH_BYTES / 2))
    assert found["cache"] == pytest.approx(1e9 / (8 * BATCH_BYTES / 2))
    assert found["store_bandwidth"] == pytest.approx(8e9 / (RANKS * BATCH_BYTES / 2))
    assert found["store_requests"] == pytest.approx(16e3 / (RANKS * 100 / 2))


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        ({}, "step"),
        ({"cores": 8.0}, "cores"),
        ({"network_bytes_s": 1e8}, "network"),
        ({"store_bytes_s": 1e9}, "store_bandwidth"),
        ({"store_requests_s": 1e3}, "store_requests"),
    ],
)
def test_the_lowest_bound_comes_first_and_unknown_limits_set_no_bound(limits, first):
    found = cluster_bounds(need(), site(**limits))
    assert found[0].name == first
    assert len(found) == 3 + len(limits.keys() - {"cores"})


def test_too_few_workers_are_a_bound():
    found = cluster_bounds(need(workers=1), site())
    assert (found[0].name, found[0].rate) == ("loader", pytest.approx(1 / 0.25))


def test_without_workers_making_a_batch_and_the_step_add_up():
    assert rate_by_name(cluster_bounds(need(workers=0), site()))["loader"] == pytest.approx(1 / (0.25 + STEP_S))


def test_the_slowest_of_many_ranks_takes_the_longest_recorded_step():
    steps = np.array([0.1] * 9 + [0.2])
    assert expected_maximum(steps, 1) == pytest.approx(0.11)
    assert expected_maximum(steps, 2) == pytest.approx(0.1 + 0.1 * (1 - 0.81))
    assert expected_maximum(steps, 1024) == pytest.approx(0.2)


# -- caches --------------------------------------------------------------------------------------------------------


def test_a_cache_holds_more_of_the_dataset_in_every_epoch():
    four_nodes = site(cache_bytes=1e15)
    assert [cache_hit_share(four_nodes, 1e12, epoch) for epoch in (1, 2, 3)] == [
        0.0,
        pytest.approx(0.25),
        pytest.approx(7 / 16),
    ]
    assert cache_hit_share(four_nodes, 1e12, None) == 1.0
    assert cache_hit_share(site(nodes=1, cache_bytes=1e15), 1e12, 2) == 1.0


def test_the_share_in_a_cache_is_limited_by_its_size():
    assert cache_hit_share(site(cache_bytes=1e11), 1e12, None) == pytest.approx(0.1)
    assert cache_hit_share(site(), 1e12, None) == 0.0
    assert cache_hit_share(site(cache_bytes=1e11), None, None) == 0.0


# -- lanes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 6, 8, 48, 64, 96, 1024])
def test_the_planned_number_of_lanes_is_the_loaders_own(ranks):
    found = plan_lanes(ranks, None)
    assert found.lanes >= LANES
    assert found.lanes == default_lanes(ranks)
    assert found.lanes % ranks == 0
    assert plan_lanes(1, None).lanes == LANES


def test_blocks_are_halved_until_each_lane_has_enough():
    large = plan_lanes(1024, 1e15)
    assert (large.block_bytes, large.enough) == (BLOCK_BYTES, True)
    small = plan_lanes(1024, 1024 * MIN_BLOCKS_PER_LANE * 300e3)
    assert small.block_bytes == BLOCK_BYTES // 8
    assert small.enough
    assert small.blocks >= MIN_BLOCKS_PER_LANE * 1024


def test_a_dataset_too_small_for_the_ranks_is_reported():
    assert not plan_lanes(1024, 1e6).enough
    assert plan_lanes(1024, 1e6).least_bytes == 1024 * MIN_BLOCKS_PER_LANE * BLOCK_BYTES


# -- packing -------------------------------------------------------------------------------------------------------


def test_reading_in_blocks_needs_fewer_requests_and_less_waiting():
    packed = in_blocks(need())
    assert packed.batch_requests == pytest.approx(BATCH_BYTES / BLOCK_BYTES)
    assert packed.waited_s.mean() == pytest.approx(0.05 * packed.batch_requests / 100)
    assert packed.batch_bytes == BATCH_BYTES


def test_packing_is_not_forecast_if_it_changes_nothing_or_amounts_are_unknown():
    assert in_blocks(need(batch_requests=BATCH_BYTES / BLOCK_BYTES)) is None
    assert in_blocks(need(batch_requests=None)) is None
    assert with_half_side(need(batch_bytes=None)) is None


def test_every_form_of_packing_has_its_lowest_bound_and_its_demand():
    found = plan_fleet(need(), site(store_requests_s=1e3))
    as_is, blocks, half = found.packing
    assert (as_is.first.name, blocks.first.name) == ("store_requests", "store_requests")
    assert blocks.first.samples_s > 20 * as_is.first.samples_s
    assert half.demanded.store_bytes_s == pytest.approx(as_is.demanded.store_bytes_s / 4)
    assert half.demanded.node_cores == pytest.approx(as_is.demanded.node_cores / 4)


# -- the plan ------------------------------------------------------------------------------------------------------


def test_ranks_that_the_store_limits_read_at_its_bandwidth():
    epoch = forecast_epoch(need(), site(store_bytes_s=1e9), "first", 0.0)
    assert epoch.by == "simulation"
    assert epoch.samples_s == pytest.approx(1e9 / BATCH_BYTES * BATCH, rel=0.05)
    assert epoch.store_bytes_s == pytest.approx(1e9, rel=0.05)
    assert epoch.data_share > 0.5


def test_ranks_that_the_step_limits_do_not_wait_for_data():
    epoch = forecast_epoch(need(), site(store_bytes_s=1e12), "first", 0.0)
    assert epoch.limits[0].name == "step"
    assert epoch.samples_s == pytest.approx(RANKS * BATCH / STEP_S, rel=0.02)
    assert epoch.data_share < 0.02


def test_an_epoch_has_its_amounts_and_a_price_only_if_prices_are_given():
    plain, priced = (
        plan_fleet(need(), site(), price).epochs[0] for price in (None, StorePrice(of_gb=0.01, of_million_requests=0.4))
    )
    assert plain.store_bytes == pytest.approx(1e6 * BATCH_BYTES / BATCH)
    assert plain.store_requests == pytest.approx(1e6 * 100 / BATCH)
    assert plain.seconds == pytest.approx(1e6 / plain.samples_s)
    assert plain.price is None
    assert priced.price == pytest.approx(1e12 / 1e9 * 0.01 + 10 * 0.4)


def test_later_epochs_are_forecast_only_with_a_cache():
    assert [epoch.name for epoch in plan_fleet(need(), site()).epochs] == ["first"]
    cached = plan_fleet(need(), site(cache_bytes=1e13, store_bytes_s=1e9)).epochs
    assert [epoch.name for epoch in cached] == ["first", "second", "later"]
    assert cached[0].samples_s < cached[1].samples_s < cached[2].samples_s
    assert cached[2].store_bytes == 0


def test_the_laws_are_used_if_simulating_takes_too_long(monkeypatch):
    monkeypatch.setattr(forecast_module, "MAX_EVENTS", 100)
    epoch = forecast_epoch(need(), site(), "first", 0.0)
    assert (epoch.by, epoch.data_share) == ("laws", None)
    assert epoch.samples_s == pytest.approx(epoch.limits[0].samples_s)


def test_unknown_limits_and_assumptions_are_noted():
    notes = " ".join(plan_fleet(need(samples=None), site(cache_bytes=1e12, network_bytes_s=1e9)).notes)
    assert "--store-bandwidth" in notes
    assert "--network" not in notes
    assert "--dataset-bytes" in notes
    assert "assumed to be all alike" in notes
    varying = plan_fleet(need(step_s=np.linspace(0.1, 0.2, 20), batch_bytes=None), site())
    assert "vary as the steps of one rank do" in " ".join(varying.notes)
    assert "Bytes were not counted" in " ".join(varying.notes)
    assert varying.slowest_s > varying.step_s


@pytest.mark.parametrize(
    "invalid", [{"nodes": 0}, {"gpus_per_node": 0}, {"store_bytes_s": 0.0}, {"cores": -1.0}, {"cache_bytes": -1.0}]
)
def test_an_impossible_cluster_is_refused(invalid):
    with pytest.raises(SettingError):
        Cluster(**{"nodes": 1, "gpus_per_node": 1, **invalid})


def test_a_need_without_step_time_or_samples_is_refused():
    with pytest.raises(SettingError, match="takes no time"):
        need(step_s=np.zeros(20))
    with pytest.raises(SettingError, match="samples"):
        need(samples_per_batch=float("nan"))
