"""Ranks in step, where the answer is known or another simulator has it."""

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.model.ranks import PLACES, RankGroup, simulate_ranks
from penstock.model.workload import Workload


def crowd(nodes=1, ranks_per_node=1, *, workers=4, step_s=0.02, step_cpu_s=0.0, batches=1, **work):
    rows = np.stack([np.broadcast_to(np.asarray(work.get(name, 0.0), float), batches) for name in PLACES])
    steps = np.atleast_1d(np.asarray(step_s, float))
    return RankGroup(
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        workers=workers,
        cores=work.get("cores", 1000.0),
        work=rows,
        step_s=steps,
        step_cpu_s=np.broadcast_to(step_cpu_s, steps.shape),
    )


def rate(of, steps=40, warm_up=40):
    return simulate_ranks(of, steps, warm_up).steps_s


def near(number, rel=0.02):
    return pytest.approx(number, rel=rel)


# -- one rank --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "cores", "cpu_s", "alone_s", "step_cpu_s"),
    [(4, 64.0, 0.01, 0.0, 0.0), (4, 64.0, 0.0, 0.2, 0.0), (4, 2.0, 0.06, 0.0, 0.01), (2, 2.0, 0.03, 0.02, 0.0)],
)
def test_a_rank_alone_is_what_the_simulator_of_one_loader_says(workers, cores, cpu_s, alone_s, step_cpu_s):
    alone = Workload(
        workers=workers,
        prefetch=2,
        in_order=True,
        cores=cores,
        cpu_s=np.array([cpu_s]),
        alone_s=np.array([alone_s]),
        handover_s=np.zeros(1),
        step_s=np.array([0.02]),
        step_cpu_s=np.array([step_cpu_s]),
        worker=np.arange(120) % workers,
    )
    one = crowd(workers=workers, cores=cores, cpu_s=cpu_s, alone_s=alone_s, step_cpu_s=step_cpu_s)
    assert rate(one) == near(alone.steady_rate, rel=0.05)


def test_a_loop_without_workers_makes_its_batches_itself():
    assert rate(crowd(workers=0, alone_s=0.03, cpu_s=0.01)) == near(1 / 0.06)


# -- what they share -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "each"), [(1, 8), (4, 2), (8, 1)])
def test_a_store_is_shared_by_all_wherever_they_are(nodes, each):
    assert rate(crowd(nodes, each, store_s=0.01)) == near(1 / (8 * 0.01))


@pytest.mark.parametrize("place", ["network_s", "cache_s"])
def test_network_and_cache_are_the_nodes_own(place):
    one, four = (rate(crowd(nodes, 4, **{place: 0.01})) for nodes in (1, 4))
    assert one == near(1 / (4 * 0.01))
    assert four == near(one)


def test_cores_are_the_nodes_own():
    one, four = (rate(crowd(nodes, 4, cpu_s=0.1, cores=8.0)) for nodes in (1, 4))
    assert one == near(8 / (4 * 0.1))
    assert four == near(one)


def test_waiting_alone_costs_many_ranks_no_more_than_one():
    assert rate(crowd(16, 8, alone_s=0.4)) == near(4 / 0.4)


# -- the slowest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 4, 32])
def test_a_step_takes_as_long_as_that_of_the_slowest_rank(ranks):
    steps = np.array([0.01] * 9 + [0.05])
    some_slow = 1 - 0.9**ranks
    found = simulate_ranks(crowd(1, ranks, step_s=steps), 600, 20)
    assert 1 / found.steps_s == near(0.01 + 0.04 * some_slow, rel=0.1)
    assert found.others_share == near(1 - (0.01 + 0.004) * found.steps_s, rel=0.1) if ranks > 1 else True
    assert found.data_share == 0


def test_batches_that_vary_are_ridden_over_by_what_is_in_stock_until_ranks_are_many():
    uneven = np.array([0.02] * 19 + [0.2])
    one, many = (simulate_ranks(crowd(1, ranks, alone_s=uneven, batches=20), 200, 40) for ranks in (1, 64))
    assert one.steps_s > 40
    assert many.steps_s < 0.8 * one.steps_s
    assert many.data_share > 2 * one.data_share


def test_a_rank_that_waits_for_data_is_not_said_to_wait_for_others():
    found = simulate_ranks(crowd(1, 2, alone_s=0.4), 40, 40)
    assert found.data_share == near(1 - 0.02 * found.steps_s, rel=0.05)
    assert found.others_share == pytest.approx(0.0, abs=0.02)


def test_the_same_seed_gives_the_same():
    uneven = crowd(2, 4, step_s=np.array([0.01, 0.02, 0.05]), alone_s=0.01)
    first, again, other = (simulate_ranks(uneven, 40, 20, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_what_takes_no_time_has_no_rate():
    assert rate(crowd(step_s=0.0)) == np.inf


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"ranks_per_node": 0}])
def test_nobody_is_no_crowd(wrong):
    with pytest.raises(SettingError):
        crowd(**wrong)


def test_no_steps_say_nothing():
    with pytest.raises(SettingError):
        simulate_ranks(crowd(), 0, 10)
