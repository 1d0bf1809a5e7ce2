"""Tests of the simulator of ranks, where the answer is known or the simulator of one loader gives it."""

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.model.rank_simulator import RANK_STAGES, RankGroup, simulate_ranks
from penstock.model.workload import Workload


def group(nodes=1, ranks_per_node=1, *, workers=4, step_s=0.02, step_cpu_s=0.0, batches=1, **work):
    rows = np.stack([np.broadcast_to(np.asarray(work.get(name, 0.0), float), batches) for name in RANK_STAGES])
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


def rate(ranks, steps=40, warm_up=40):
    return simulate_ranks(ranks, steps, warm_up).steps_per_s


def near(number, rel=0.02):
    return pytest.approx(number, rel=rel)


# -- one rank --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "cores", "cpu_s", "latency_s", "step_cpu_s"),
    [(4, 64.0, 0.01, 0.0, 0.0), (4, 64.0, 0.0, 0.2, 0.0), (4, 2.0, 0.06, 0.0, 0.01), (2, 2.0, 0.03, 0.02, 0.0)],
)
def test_one_rank_has_the_rate_of_the_simulator_of_one_loader(workers, cores, cpu_s, latency_s, step_cpu_s):
    alone = Workload(
        workers=workers,
        prefetch=2,
        in_order=True,
        cores=cores,
        cpu_s=np.array([cpu_s]),
        latency_s=np.array([latency_s]),
        receive_s=np.zeros(1),
        step_s=np.array([0.02]),
        step_cpu_s=np.array([step_cpu_s]),
        worker=np.arange(120) % workers,
    )
    rank = group(workers=workers, cores=cores, cpu_s=cpu_s, latency_s=latency_s, step_cpu_s=step_cpu_s)
    assert rate(rank) == near(alone.steady_rate, rel=0.05)


def test_a_loop_without_workers_makes_its_batches_itself():
    assert rate(group(workers=0, latency_s=0.03, cpu_s=0.01)) == near(1 / 0.06)


# -- shared resources -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (4, 2), (8, 1)])
def test_the_store_is_shared_by_the_ranks_of_all_nodes(nodes, per_node):
    assert rate(group(nodes, per_node, store_s=0.01)) == near(1 / (8 * 0.01))


@pytest.mark.parametrize("stage", ["network_s", "cache_s"])
def test_network_and_cache_are_shared_within_a_node_only(stage):
    one, four = (rate(group(nodes, 4, **{stage: 0.01})) for nodes in (1, 4))
    assert one == near(1 / (4 * 0.01))
    assert four == near(one)


def test_cores_are_shared_within_a_node_only():
    one, four = (rate(group(nodes, 4, cpu_s=0.1, cores=8.0)) for nodes in (1, 4))
    assert one == near(8 / (4 * 0.1))
    assert four == near(one)


def test_latency_costs_many_ranks_no_more_than_one():
    assert rate(group(16, 8, latency_s=0.4)) == near(4 / 0.4)


# -- the slowest rank ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 4, 32])
def test_a_step_takes_as_long_as_that_of_the_slowest_rank(ranks):
    steps = np.array([0.01] * 9 + [0.05])
    some_slow = 1 - 0.9**ranks
    found = simulate_ranks(group(1, ranks, step_s=steps), 600, 20)
    assert 1 / found.steps_per_s == near(0.01 + 0.04 * some_slow, rel=0.1)
    assert found.others_share == near(1 - (0.01 + 0.004) * found.steps_per_s, rel=0.1) if ranks > 1 else True
    assert found.data_share == 0


def test_prefetching_hides_uneven_batches_of_few_ranks_but_not_of_many():
    uneven = np.array([0.02] * 19 + [0.2])
    one, many = (simulate_ranks(group(1, ranks, latency_s=uneven, batches=20), 200, 40) for ranks in (1, 64))
    assert one.steps_per_s > 40
    assert many.steps_per_s < 0.8 * one.steps_per_s
    assert many.data_share > 2 * one.data_share


def test_waiting_for_data_is_not_counted_as_waiting_for_other_ranks():
    found = simulate_ranks(group(1, 2, latency_s=0.4), 40, 40)
    assert found.data_share == near(1 - 0.02 * found.steps_per_s, rel=0.05)
    assert found.others_share == pytest.approx(0.0, abs=0.02)


def test_the_same_seed_gives_the_same_result():
    uneven = group(2, 4, step_s=np.array([0.01, 0.02, 0.05]), latency_s=0.01)
    first, again, other = (simulate_ranks(uneven, 40, 20, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_steps_that_take_no_time_have_an_infinite_rate():
    assert rate(group(step_s=0.0)) == np.inf


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"ranks_per_node": 0}])
def test_a_group_without_ranks_is_refused(wrong):
    with pytest.raises(SettingError):
        group(**wrong)


def test_a_simulation_of_no_steps_is_refused():
    with pytest.raises(SettingError):
        simulate_ranks(group(), 0, 10)
